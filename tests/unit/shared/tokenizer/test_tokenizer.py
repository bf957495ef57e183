"""Tokenizer folders, byte values, errors."""

import asyncio
import json
from pathlib import Path

import pytest

from shared.errors import ModelLoadError
from shared.tokenizer.folder import default_cache_dir, find_model_folder, model_cache_folder
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import MAX_POSITION, write_tokenizer_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def test_facts(tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("<|im_end|>")
    assert tokenizer.eos_ids == tuple(end)
    assert tokenizer.max_length == MAX_POSITION
    assert tokenizer.vocab_size > 256
    assert tokenizer.chat_template is not None


def test_special_tokens_are_skipped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>a")
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>a"


def test_token_bytes(tokenizer: Tokenizer) -> None:
    text = "Hello 漢 \n"
    ids = tokenizer.encode(text)
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()
    assert tokenizer.token_bytes(tokenizer.eos_ids[0]) == b"<|im_end|>"
    assert tokenizer.token_bytes(10**6) == b""


def test_several_eos_ids(folder: Path, tmp_path: Path) -> None:
    copy = write_tokenizer_folder(tmp_path)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert {1, 2} < set(Tokenizer.from_folder(copy).eos_ids)


def test_larger_embedding(tmp_path: Path) -> None:
    copy = write_tokenizer_folder(tmp_path)
    (copy / "config.json").write_text(json.dumps({"vocab_size": 99999}))
    assert Tokenizer.from_folder(copy).vocab_size == 99999


@pytest.mark.parametrize("content", ["{", "[]", '"x"'])
def test_damaged_settings(tmp_path: Path, content: str) -> None:
    copy = write_tokenizer_folder(tmp_path)
    (copy / "tokenizer_config.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(copy)


def test_damaged_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_find_model_folder(folder: Path, tmp_path: Path) -> None:
    assert find_model_folder(str(folder)) == folder
    target = model_cache_folder("org/model", tmp_path)
    assert target == tmp_path / "models" / "org--model"
    with pytest.raises(ModelLoadError, match="tandem model pull org/model"):
        find_model_folder("org/model", tmp_path)
    target.mkdir(parents=True)
    with pytest.raises(ModelLoadError, match="has no"):
        find_model_folder("org/model", tmp_path)
    write_tokenizer_folder(target)
    assert find_model_folder("org/model", tmp_path) == target


def test_default_cache_dir(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TANDEM_CACHE_DIR", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("TANDEM_CACHE_DIR")
    assert default_cache_dir() == Path.home() / ".cache" / "tandem"


def test_fewest_tokens_is_a_lower_bound(tokenizer: Tokenizer) -> None:
    for text in ("", "a", "<|im_start|>" * 9, "Hello world " * 20, "漢字" * 9):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.fewest_tokens("x" * 1300) == 100


async def test_encoding_leaves_the_loop_running(tokenizer: Tokenizer) -> None:
    encoding = asyncio.create_task(asyncio.to_thread(tokenizer.encode, "ab " * 300_000))
    ticks = 0
    while not encoding.done():
        await asyncio.sleep(0.001)
        ticks += 1
    assert ticks > 10


def test_offsets_cut_the_text_up(tokenizer: Tokenizer) -> None:
    text = "<|im_start|>Hello world, stop é!"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert len(offsets) == len(ids)
    assert text[slice(*offsets[0])] == "<|im_start|>"
    assert text[slice(*offsets[1])] == "Hello"
    two_bytes = text.index("é")
    assert offsets.count((two_bytes, two_bytes + 1)) == 2
    assert offsets[-1] == (len(text) - 1, len(text))

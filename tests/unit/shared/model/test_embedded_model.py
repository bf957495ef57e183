"""The embedded real model: logits and tokenizer against transformers, from the same folder."""

import pydoc_data.topics
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from shared.model.config import ModelConfig
from shared.model.embedded import EMBEDDED, gguf_of
from shared.model.progress import silent
from shared.model.weights import LoadedModel, load_model
from tests.support.hf_twin import hf_logits
from tests.support.tiny_model import dense_logits

TEXT = pydoc_data.topics.topics["assignment"]
SAMPLES = [
    "Hello, world!",
    "In 2024 there were 365.25 days; x1 = 0xFF",
    "  leading and   inner spaces\n\n\ttabs ",
    "naïve café — Привет, 世界 🙂🏳️‍🌈",
    "<|im_start|>user\nWhat is 12+30?<|im_end|>\n",
    "",
]


@pytest.fixture(scope="module")
def loaded(smollm2_dir: Path) -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(smollm2_dir)


@pytest.fixture(scope="module")
def ours(smollm2_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))


def test_shape_and_profile(loaded: LoadedModel, smollm2_dir: Path) -> None:
    config = loaded.model.config
    assert loaded.folder == smollm2_dir
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (30, 9, 3)
    assert (config.head_dim, config.max_position, config.tie_embeddings) == (64, 8192, True)
    assert (config.rms_norm_eps, config.rope.theta) == (1e-5, 1e5)
    assert config.eos_token_ids == (2, 0)
    assert loaded.profile.name == "smollm2-135m-instruct"


def test_logits_equal_transformers(
    loaded: LoadedModel, smollm2_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    ids_T = torch.tensor(tokenizer(TEXT)["input_ids"][:200])
    twin = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    assert (dense_logits(loaded.model, ids_T) - hf_logits(twin, ids_T)).abs().max() < 1e-3


def test_the_vocabulary_is_that_of_the_gguf_file(ours: Tokenizer, smollm2_dir: Path) -> None:
    with gguf_of(EMBEDDED["smollm2"], progress=silent) as path:
        fields = GGUFReader(path).fields
        tokens = fields["tokenizer.ggml.tokens"].contents()
        types = fields["tokenizer.ggml.token_type"].contents()
    vocabulary = ours.get_vocab()
    assert [vocabulary[token] for token in tokens] == list(range(len(tokens)))
    specials = [index for index, kind in enumerate(types) if kind == 3]
    assert sorted(ours.get_added_tokens_decoder()) == specials
    assert ModelConfig.from_folder(smollm2_dir).vocab_size == len(tokens)


@pytest.mark.parametrize("text", SAMPLES)
def test_text_survives_and_equals_transformers(
    ours: Tokenizer, tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    ids = ours.encode(text).ids
    assert ids == tokenizer(text)["input_ids"]
    assert ours.decode(ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens(ours: Tokenizer) -> None:
    assert len(ours.encode("2024").ids) == 4


def test_specials_are_whole_and_skipped(ours: Tokenizer) -> None:
    assert ours.encode("<|im_start|>x<|im_end|>").ids == [1, ours.token_to_id("x"), 2]
    assert ours.decode([1, 2, 0]) == ""


def test_chat_template_and_special_names(tokenizer: PreTrainedTokenizerBase) -> None:
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert str(text).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.model_max_length == 8192

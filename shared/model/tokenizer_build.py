"""Builds tokenizer.json and tokenizer_config.json for byte-level BPE vocabularies."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from shared.errors import ModelLoadError

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Chat template of models that frame messages with <|im_start|> and <|im_end|>."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A byte-level BPE vocabulary and how text is cut before it."""

    tokens: Sequence[str]
    """Token texts in id order."""
    merges: Sequence[tuple[str, str]]
    """Merges, best first."""
    specials: Sequence[int]
    """Ids that are matched whole in text and skipped when decoding."""
    split: str
    """Name of the pre-tokenizer: gpt-2, smollm, llama-bpe or qwen2."""
    bos: int | None = None
    """Beginning-of-text id."""
    eos: int | None = None
    """End-of-turn id."""
    pad: int | None = None
    """Padding id."""
    unk: int | None = None
    """Unknown id."""
    add_bos: bool = False
    """Whether encoding with special tokens prepends the beginning-of-text id."""
    chat_template: str | None = None
    """Jinja text."""
    model_max_length: int = field(default=0)
    """Context limit in tokens."""


def build_tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer of `vocabulary`.

    Raises:
        ModelLoadError: the pre-tokenizer is not known.
    """
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    tokenizer.pre_tokenizer = _splitter(vocabulary.split)
    tokenizer.decoder = decoders.ByteLevel()
    if vocabulary.split == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    texts = [vocabulary.tokens[index] for index in vocabulary.specials]
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in texts]
    )
    return tokenizer


def tokenizer_config(vocabulary: Vocabulary) -> dict[str, Any]:
    """The tokenizer_config.json that belongs to `build_tokenizer`."""
    names = {"bos_token": vocabulary.bos, "eos_token": vocabulary.eos}
    names |= {"pad_token": vocabulary.pad, "unk_token": vocabulary.unk}
    out: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": vocabulary.add_bos,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": vocabulary.model_max_length,
        "added_tokens_decoder": {
            str(index): _added_token(vocabulary.tokens[index]) for index in vocabulary.specials
        },
    }
    out |= {key: vocabulary.tokens[index] for key, index in names.items() if index is not None}
    if vocabulary.chat_template is not None:
        out["chat_template"] = vocabulary.chat_template
    return out


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """Text of tokenizer.json."""
    return json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, indent=1)


def _added_token(text: str) -> Mapping[str, Any]:
    flags = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **flags, "special": True}


def _splitter(name: str) -> pre_tokenizers.PreTokenizer:
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    after = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name in {"gpt-2", "default"}:
        return whole
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    splits = {"llama-bpe": _LLAMA3_SPLIT, "qwen2": _QWEN2_SPLIT}
    if name in splits:
        cut = pre_tokenizers.Split(Regex(splits[name]), behavior="isolated", invert=False)
        return pre_tokenizers.Sequence([cut, after])
    raise ModelLoadError(
        f"pre-tokenizer {name!r} is not supported: the GGUF file cuts text in a way other than "
        f"gpt-2, smollm, {', '.join(splits)}; use the model's safetensors folder instead"
    )

"""A standard folder with a byte-level tokenizer and a chat template, made without torch."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = ("Hello", "Ġworld", "Ġthe", "stop", "Ġ")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MAX_POSITION = 1024


def write_tokenizer_folder(
    target: Path,
    *,
    chat_template: str | None = CHAT_TEMPLATE,
    more_special: tuple[str, ...] = (),
) -> Path:
    """Every byte is a token, so that characters beyond ASCII take several; a few words merge."""
    target.mkdir(parents=True, exist_ok=True)
    vocab, merges = _vocabulary()
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    special = (*SPECIAL, *more_special)
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.save(str(target / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|im_start|>"}}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    config = {
        "vocab_size": backend.get_vocab_size(with_added_tokens=True),
        "max_position_embeddings": MAX_POSITION,
        "eos_token_id": backend.token_to_id("<|im_end|>"),
    }
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        for size in range(2, len(word) + 1):
            piece = word[:size]
            if piece not in vocab:
                vocab[piece] = len(vocab)
                merges.append((word[: size - 1], word[size - 1]))
    return vocab, merges

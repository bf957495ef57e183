"""Tokenizers of the kinds that models have, a real one among them."""

import importlib.util
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_tokenizer_folder

KINDS = ("bytes", "byte fallback", "DeepSeek")


def tokenizer_of(kind: str, *, scratch: Path) -> Tokenizer:
    """One of `KINDS`.

    Args:
        kind: its name.
        scratch: an empty folder.
    """
    if kind == "bytes":
        return Tokenizer.from_folder(write_tokenizer_folder(scratch))
    if kind == "byte fallback":
        return byte_fallback()
    return _deepseek()


def byte_fallback() -> Tokenizer:
    """As Llama 2 has it: words with a leading mark, other characters byte by byte."""
    vocab = {f"<0x{value:02X}>": value for value in range(256)}
    for word in ("\u2581hello", "\u2581a", "b", "\u2581"):
        vocab[word] = len(vocab)
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.normalizer = normalizers.Prepend("\u2581")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend, eos_ids=(), vocab_size=len(vocab))


def _deepseek() -> Tokenizer:
    """128k tokens, many of them pieces of CJK characters; LiteLLM counts tokens with it."""
    package = importlib.util.find_spec("litellm")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "litellm_core_utils" / "tokenizers"
    backend = Backend.from_file(str(folder / "deepseek_tokenizer.json"))
    return Tokenizer(backend, eos_ids=(), vocab_size=backend.get_vocab_size())

"""A model folder's tokenizer."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from shared.errors import ModelLoadError
from shared.tokenizer.chat_template import ChatTemplate
from shared.tokenizer.folder import TOKENIZER_FILE

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """Encodes and decodes; safe to call from several threads.

    Args:
        backend: the fast tokenizer.
        eos_ids: token ids that end a text.
        vocab_size: ids are below this; the model's embedding may be larger than the tokenizer's
            vocabulary.
        chat_template: None when the model has none.
        max_length: longest context that the model folder states, in tokens; None when it states
            none.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: tuple[int, ...],
        vocab_size: int,
        chat_template: ChatTemplate | None = None,
        max_length: int | None = None,
    ) -> None:
        self._backend = backend
        self.eos_ids = eos_ids
        self.vocab_size = vocab_size
        self.chat_template = chat_template
        self.max_length = max_length
        self._special = {
            token_id: token.content
            for token_id, token in backend.get_added_tokens_decoder().items()
        }
        self._special_ids = {
            token.content: token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        }
        self._longest = max((len(token) for token in backend.get_vocab()), default=1)
        self._byte_level = _byte_level_table() if _uses_byte_level(backend) else None

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Reads `tokenizer.json` and, when they exist, the configuration files beside it.

        Raises:
            ModelLoadError: the tokenizer is missing or cannot be read.
        """
        path = folder / TOKENIZER_FILE
        if not path.is_file():
            raise ModelLoadError(
                f"{path} does not exist: the model folder is incomplete; pull the model again"
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise ModelLoadError(
                f"{path} cannot be read ({error}): the file is damaged or of an unknown format; "
                "pull the model again"
            ) from error
        backend.no_padding()
        backend.no_truncation()
        settings = read_json(folder / "tokenizer_config.json")
        config = read_json(folder / "config.json")
        return cls(
            backend,
            eos_ids=_eos_ids(
                backend, settings, config, read_json(folder / "generation_config.json")
            ),
            vocab_size=max(
                int(config.get("vocab_size", 0)), backend.get_vocab_size(with_added_tokens=True)
            ),
            chat_template=ChatTemplate.from_folder(folder, settings),
            max_length=config.get("max_position_embeddings"),
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; a rendered chat template already contains its special tokens."""
        # The batch call releases the interpreter lock while it works, the single one does not.
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def encode_with_offsets(
        self, text: str, *, add_special_tokens: bool = True
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of `text` and the characters `[start, stop)` of it that each one covers.

        A token that was added to the text covers none; the tokens of one character share its range.
        """
        batch = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        return batch[0].ids, batch[0].offsets

    def to_json(self) -> str:
        """The tokenizer as text, in the format of `tokenizer.json`."""
        text: str = self._backend.to_str()
        return text

    def special_id(self, text: str) -> int | None:
        """The id of a special token, which `decode` leaves out; None when `text` is none."""
        return self._special_ids.get(text)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens in `text`, found without encoding it."""
        return len(text) // self._longest

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; incomplete UTF-8 becomes U+FFFD, ids outside the vocabulary vanish."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token stands for; empty for an id outside the vocabulary."""
        if token_id in self._special:
            return self._special[token_id].encode()
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level is not None and all(char in self._byte_level for char in token):
            return bytes(self._byte_level[char] for char in token)
        match = _BYTE_TOKEN.fullmatch(token)
        if match:
            return bytes([int(match.group(1), 16)])
        return str(token).replace("\u2581", " ").encode()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file.

    Raises:
        ModelLoadError: the file does not hold a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON ({error}): pull the model again") from error
    if not isinstance(value, dict):
        raise ModelLoadError(
            f"{path} holds {type(value).__name__}, not an object: pull the model again"
        )
    return value


def _eos_ids(
    backend: tokenizers.Tokenizer, settings: dict[str, Any], *configs: dict[str, Any]
) -> tuple[int, ...]:
    found: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    token = settings.get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    token_id = backend.token_to_id(content) if content else None
    if token_id is not None:
        found.add(token_id)
    return tuple(sorted(found))


def _uses_byte_level(backend: tokenizers.Tokenizer) -> bool:
    decoder = json.loads(backend.to_str()).get("decoder") or {}
    members = decoder.get("decoders", [decoder])
    return any(member.get("type") == "ByteLevel" for member in members)


def _byte_level_table() -> dict[str, int]:
    """Inverse of the printable alphabet that byte-level BPE writes bytes in."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in set(printable)]
    table = {chr(value): value for value in printable}
    table.update({chr(256 + i): value for i, value in enumerate(others)})
    return table

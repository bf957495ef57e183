"""What a run must know of the server before it begins."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.load.prompts import WORDS, Word
from loadtest.load.rest import rest_json
from shared.errors import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server's account of itself."""

    model: str
    """The model that is asked for."""
    version: str
    """Of the server."""
    properties: Mapping[str, Any]
    """Its /props."""
    words: tuple[Word, ...]
    """What prompts are made of, in its tokens."""

    def to_json(self) -> dict[str, Any]:
        """Model, version, properties and their fingerprint; JSON-ready."""
        plain = orjson.dumps(self.properties, option=orjson.OPT_SORT_KEYS)
        return {
            "model": self.model,
            "version": self.version,
            "fingerprint": hashlib.sha256(plain).hexdigest(),
            "properties": dict(self.properties),
        }


def ask_server(url: str, *, model: str, api_key: str) -> Served:
    """Asks for version, properties and the tokens of every word.

    Args:
        url: of a Tandem gateway.
        model: served model; empty: the one it names itself.
        api_key: bearer token; empty: none.

    Raises:
        UnavailableError: it cannot be reached, or is no gateway.
    """
    properties = rest_json(url, "/props", api_key=api_key)
    version = rest_json(url, "/version", api_key=api_key)["version"]
    words = tuple(
        Word(text, tuple(_tokens(url, text, api_key=api_key)))
        for text in (f" {word}" for word in WORDS)
    )
    return Served(
        model=model or str(properties["model"]),
        version=str(version),
        properties=properties,
        words=words,
    )


def _tokens(url: str, text: str, *, api_key: str) -> list[int]:
    body = {"prompt": text, "add_special_tokens": False}
    found: list[int] = rest_json(url, "/tokenize", api_key=api_key, body=body)["tokens"]
    if not found:
        raise UnavailableError(
            f"{url} makes no tokens of {text!r}: its tokenizer is not that of a language model; "
            "serve another model"
        )
    return found

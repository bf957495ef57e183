"""LangChain's models with connections of a test's own: its default ones are cached for ever."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from langchain_core.messages import BaseMessageChunk
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr


class LangChain:
    """Makes models that speak to one gateway.

    Args:
        url: base of the REST API.
        model: its served name.
        api_key: sent along.
        http: connections for async calls.
        blocking: connections for the others.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: str,
        http: httpx2.AsyncClient,
        blocking: httpx2.Client,
    ) -> None:
        self._fixed: dict[str, Any] = {
            "model": model,
            "base_url": url,
            "api_key": SecretStr(api_key),
            "max_retries": 0,
            "http_async_client": http,
            "http_client": blocking,
        }

    def chat(self, **settings: Any) -> ChatOpenAI:
        """A chat model."""
        return ChatOpenAI(**(self._fixed | settings))

    def completion(self, **settings: Any) -> OpenAI:
        """A model of plain completions."""
        return OpenAI(**(self._fixed | settings))


@asynccontextmanager
async def open_langchain(
    url: str, *, model: str, api_key: str = "none"
) -> AsyncIterator[LangChain]:
    """Closes the connections at the end."""
    async with httpx2.AsyncClient() as http:
        with httpx2.Client() as blocking:
            yield LangChain(url, model=model, api_key=api_key, http=http, blocking=blocking)


async def added_up(model: Runnable[Any, Any], asked: Any) -> tuple[Any, list[BaseMessageChunk]]:
    """A streamed message as LangChain adds it up, and its pieces."""
    pieces = [piece async for piece in model.astream(asked)]
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    return total, pieces

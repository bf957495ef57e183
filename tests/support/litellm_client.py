"""LiteLLM, told to keep to itself: no price list from the network, no telemetry, nothing open."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

# Read while the package is imported, so that tests import it from here alone.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import litellm.exceptions as lite
import pytest
from litellm import stream_chunk_builder
from litellm.litellm_core_utils.logging_worker import GLOBAL_LOGGING_WORKER
from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

litellm.telemetry = False
litellm.suppress_debug_info = True

__all__ = ["QUIET", "LiteLLM", "clean_litellm", "lite", "stream_chunk_builder"]

QUIET = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
"""Mark of tests that use it: its own models and late imports warn."""


class LiteLLM:
    """Its async functions, for one gateway."""

    def __init__(self, url: str, *, model: str, api_key: str = "none") -> None:
        self._fixed: dict[str, Any] = {
            "model": f"openai/{model}",
            "api_base": url,
            "api_key": api_key,
            "max_retries": 0,
        }

    async def chat(self, **fields: Any) -> Any:
        """`acompletion`, of one user message unless told otherwise."""
        messages = [{"role": "user", "content": "hi"}]
        return await litellm.acompletion(**(self._fixed | {"messages": messages} | fields))

    async def complete(self, **fields: Any) -> Any:
        """`atext_completion`."""
        model = self._fixed["model"].replace("openai/", "text-completion-openai/")
        return await litellm.atext_completion(**(self._fixed | {"model": model} | fields))


@asynccontextmanager
async def clean_litellm() -> AsyncIterator[None]:
    """Its cached connections and its background task end with the test that began them."""
    try:
        yield
    finally:
        await GLOBAL_LOGGING_WORKER.flush()
        await GLOBAL_LOGGING_WORKER.stop()
        await close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()

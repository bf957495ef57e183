"""What users see of the client: its names, its types, and what its import costs."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import gateway.sdk
from gateway.sdk import (
    AsyncTandemClient,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generation,
    Message,
    Report,
    TandemClient,
    Tool,
)

HEAVY = (
    "torch", "transformers", "numpy", "pydantic", "starlette", "uvicorn", "httpx", "structlog",
    "tokenizers", "llguidance", "redis", "jinja2", "prometheus_client",
)  # fmt: skip

_LOADED = f"""
import sys
import gateway.sdk
ours = [name for name in sys.modules if name.startswith("gateway.")]
print([name for name in ours if not name.startswith("gateway.sdk")])
print([name for name in {HEAVY!r} if name in sys.modules])
print([name for name in sys.modules if name.startswith(("prefill_service", "decode_service"))])
"""


def test_importing_it_loads_nothing_of_the_server() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == ["[]", "[]", "[]", ""]


def test_every_name_is_there() -> None:
    assert sorted(gateway.sdk.__all__) == gateway.sdk.__all__
    assert all(hasattr(gateway.sdk, name) for name in gateway.sdk.__all__)


def typed(client: TandemClient) -> None:
    """Never called: the type checker reads it, and refuses an ignore that is not needed."""
    whole = client.generate([Message("user", "hi")], temperature=0.0, keep_rate=0.2, mode="both")
    assert_type(whole, Generation)
    assert_type(whole.report, Report)
    assert_type(whole.answers[0].reason, FinishReason)
    with client.stream("hi", n=2, tools=[Tool(name="clock")], tool_choice="auto") as stream:
        assert_type(iter(stream).__next__(), Event)
        for event in stream:
            if isinstance(event, Delta):
                assert_type(event.token_ids, tuple[int, ...])
            else:
                assert_type(event, Finished)
        _: Iterator[Event] = stream
    client.generate("hi", temprature=0.0)  # type: ignore[call-arg]
    client.generate("hi", mode="fast")  # type: ignore[arg-type]
    client.generate("hi", max_tokens="9")  # type: ignore[arg-type]
    client.generate({"role": "user"})  # type: ignore[arg-type]
    whole.text = "no"  # type: ignore[misc]


async def typed_too(client: AsyncTandemClient) -> None:
    """The same for event loops."""
    assert_type(await client.generate([1, 2, 3], max_tokens=4), Generation)
    async with client.stream("hi") as stream:
        _: AsyncIterator[Event] = stream
        assert_type(await stream.result(), Generation)
    client.stream("hi", timeout="9")  # type: ignore[call-arg]

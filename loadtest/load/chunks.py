"""What a frame of a streamed completion or chat completion says."""

from typing import Any

import orjson

from loadtest.load.exchange import Exchange
from loadtest.load.outcome import Failure

DONE = "[DONE]"
"""The last mark of a stream."""


def note_frame(data: str, exchange: Exchange) -> None:
    """Tells an exchange what a frame says.

    Args:
        data: of the event.
        exchange: the request under way.
    """
    if data == DONE:
        exchange.whole()
        return
    try:
        chunk = orjson.loads(data)
        if "error" in chunk:
            exchange.fail(Failure.ERROR_FRAME, orjson.dumps(chunk["error"]).decode())
            return
        _note(chunk, exchange)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        exchange.fail(Failure.BAD_FRAME, f"{type(error).__name__} in {data}")


def _note(chunk: dict[str, Any], exchange: Exchange) -> None:
    for choice in chunk["choices"]:
        exchange.text(_text(choice))
        for part in (choice.get("delta") or {}).get("tool_calls") or ():
            function = part.get("function") or {}
            exchange.call_part(
                part["index"],
                id=part.get("id") or "",
                name=function.get("name") or "",
                arguments=function.get("arguments") or "",
            )
        if choice.get("finish_reason"):
            exchange.finish_reason()
    usage = chunk.get("usage")
    if usage:
        exchange.usage(
            prompt_tokens=usage["prompt_tokens"], answer_tokens=usage["completion_tokens"]
        )
    report = chunk.get("tandem")
    if report:
        exchange.work(**{name: report[name] for name in ("kept_tokens", "attended", "dense")})


def _text(choice: dict[str, Any]) -> str:
    """Content or reasoning of a chat's delta, or a completion's text."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    return delta.get("content") or delta.get("reasoning_content") or ""

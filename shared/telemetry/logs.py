"""Structured logs on standard error: key=value on a terminal, JSON elsewhere, never prompt text."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from shared.errors import ConfigError

_PRIVATE_KEYS = frozenset(
    {"prompt", "messages", "text", "token_ids", "prompt_token_ids", "content"}
)

_KEY_ORDER = ["timestamp", "level", "role", "worker_id", "event", "request_id", "handoff_id"]


def configure_logging(
    *,
    role: str,
    worker_id: str = "",
    log_format: str = "auto",
    level: str = "info",
    stream: IO[str] | None = None,
) -> None:
    """Sets up structlog and the standard library's logging for this process.

    Args:
        role: on every line.
        worker_id: on every line, unless empty.
        log_format: json, text, or auto (text when `stream` is a terminal).
        level: lowest level shown.
        stream: where to write; standard error by default.

    Raises:
        ConfigError: unknown format or level.
    """
    out = stream if stream is not None else sys.stderr
    renderer = _renderer(log_format, is_terminal=out.isatty())
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"log level {level!r} is unknown; use debug, info, warning or error")
    identity = {"role": role} | ({"worker_id": worker_id} if worker_id else {})
    shared_steps: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _adder(identity),
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        hide_private_values,
    ]
    structlog.configure(
        processors=[*shared_steps, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared_steps,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)


@contextmanager
def log_context(**values: str) -> Iterator[None]:
    """Adds values such as request_id or handoff_id to every line of the current task."""
    with structlog.contextvars.bound_contextvars(**values):
        yield


def hide_private_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Replaces values that may hold a user's words by their size."""
    for key in _PRIVATE_KEYS & event.keys():
        value = event[key]
        event[key] = f"<{len(value)} hidden>" if hasattr(value, "__len__") else "<hidden>"
    return event


def _adder(values: dict[str, str]) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        for key, value in values.items():
            event.setdefault(key, value)
        return event

    return add


def _renderer(log_format: str, *, is_terminal: bool) -> Processor:
    if log_format == "json" or (log_format == "auto" and not is_terminal):
        return structlog.processors.JSONRenderer()
    if log_format in {"text", "auto"}:
        return structlog.processors.KeyValueRenderer(
            key_order=_KEY_ORDER, drop_missing=True, repr_native_str=False
        )
    raise ConfigError(f"log_format {log_format!r} is unknown; use auto, json or text")

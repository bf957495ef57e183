"""Request options on the wire."""

from enum import Enum
from typing import Any

from protos.tandem.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.types.methods import PageHeads, PageLayout
from shared.types.options import Mode, RequestOptions, TokenRange
from shared.types.page_policies import PagePolicyName

_MODES = {
    Mode.AUTO: common_pb2.MODE_AUTO,
    Mode.FULL: common_pb2.MODE_FULL,
    Mode.PRUNE: common_pb2.MODE_PRUNE,
    Mode.SPARSE: common_pb2.MODE_SPARSE,
    Mode.BOTH: common_pb2.MODE_BOTH,
}
_MODES_BACK = {value: key for key, value in _MODES.items()} | {
    common_pb2.MODE_UNSPECIFIED: Mode.AUTO
}

_CHOICES: dict[str, type[PagePolicyName] | type[PageLayout] | type[PageHeads]] = {
    "page_policy": PagePolicyName,
    "page_layout": PageLayout,
    "page_heads": PageHeads,
}
"""Fields that travel as text and must be one of an enum's values."""


def mode_to_pb(mode: Mode) -> common_pb2.Mode.ValueType:
    """Converts a mode."""
    return _MODES[mode]


def options_to_pb(options: RequestOptions) -> common_pb2.RequestOptions:
    """Converts overrides; None stays unset."""
    return common_pb2.RequestOptions(
        mode=mode_to_pb(options.mode),
        keep_rate=options.keep_rate,
        min_keep=options.min_keep,
        page_budget=options.page_budget,
        recency_pages=options.recency_pages,
        protect=[common_pb2.TokenRange(start=r.start, end=r.end) for r in options.protect],
        observation_window=options.observation_window,
        mass=options.mass,
        min_rate=options.min_rate,
        max_rate=options.max_rate,
        page_policy=_text(options.page_policy),
        page_layout=_text(options.page_layout),
        page_heads=_text(options.page_heads),
        page_refresh=options.page_refresh,
        page_mass=options.page_mass,
        trace=options.trace,
        replay=options.replay,
    )


def options_from_pb(message: common_pb2.RequestOptions) -> RequestOptions:
    """Checks and converts overrides.

    Raises:
        InvalidRequestError: unknown mode or policy, or a value out of range; `param` names it.
    """
    if message.mode not in _MODES_BACK:
        raise InvalidRequestError(
            f"mode {message.mode} is unknown: the peer speaks a newer protocol; upgrade this side",
            param="tandem.mode",
        )
    values: dict[str, Any] = {
        field.name: _member(field.name, value) if field.name in _CHOICES else value
        for field, value in message.ListFields()
        if field.name not in {"mode", "protect"}
    }
    options = RequestOptions(
        mode=_MODES_BACK[message.mode],
        protect=tuple(TokenRange(r.start, r.end) for r in message.protect),
        **values,
    )
    options.check_pruning()
    options.check_pages()
    return options


def _text(value: Enum | None) -> str | None:
    return None if value is None else str(value.value)


def _member(name: str, text: str) -> Enum:
    choices = _CHOICES[name]
    try:
        return choices(text)
    except ValueError:
        known = ", ".join(member.value for member in choices)
        raise InvalidRequestError(
            f"{name} {text[:32]!r} is unknown; give one of {known}", param=f"tandem.{name}"
        ) from None

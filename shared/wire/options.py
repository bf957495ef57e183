"""Request options on the wire."""

from protos.tandem.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.types.options import Mode, RequestOptions, TokenRange

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


def options_to_pb(options: RequestOptions) -> common_pb2.RequestOptions:
    """Converts overrides; None stays unset."""
    return common_pb2.RequestOptions(
        mode=_MODES[options.mode],
        keep_rate=options.keep_rate,
        min_keep=options.min_keep,
        page_budget=options.page_budget,
        recency_pages=options.recency_pages,
        protect=[common_pb2.TokenRange(start=r.start, end=r.end) for r in options.protect],
        observation_window=options.observation_window,
        mass=options.mass,
        min_rate=options.min_rate,
        max_rate=options.max_rate,
    )


def options_from_pb(message: common_pb2.RequestOptions) -> RequestOptions:
    """Checks and converts overrides.

    Raises:
        InvalidRequestError: unknown mode, or a value out of range; `param` names it.
    """
    if message.mode not in _MODES_BACK:
        raise InvalidRequestError(
            f"mode {message.mode} is unknown: the peer speaks a newer protocol; upgrade this side",
            param="tandem.mode",
        )
    numbers = {
        field.name: value
        for field, value in message.ListFields()
        if field.name not in {"mode", "protect"}
    }
    options = RequestOptions(
        mode=_MODES_BACK[message.mode],
        protect=tuple(TokenRange(r.start, r.end) for r in message.protect),
        **numbers,
    )
    options.check_pruning()
    return options

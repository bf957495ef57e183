"""Request options on the wire."""

from protos.tandem.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.types.options import Mode, RequestOptions
from shared.wire.checks import number

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
    )


def options_from_pb(message: common_pb2.RequestOptions) -> RequestOptions:
    """Checks and converts overrides.

    Raises:
        InvalidRequestError: unknown mode, or keep_rate outside (0, 1].
    """
    if message.mode not in _MODES_BACK:
        raise InvalidRequestError(
            f"mode {message.mode} is unknown: the peer speaks a newer protocol; upgrade this side",
            param="tandem.mode",
        )
    keep_rate = None
    if message.HasField("keep_rate"):
        keep_rate = number(
            message.keep_rate, param="tandem.keep_rate", low=0, high=1, low_open=True
        )
    return RequestOptions(
        mode=_MODES_BACK[message.mode],
        keep_rate=keep_rate,
        min_keep=message.min_keep if message.HasField("min_keep") else None,
        page_budget=message.page_budget if message.HasField("page_budget") else None,
        recency_pages=message.recency_pages if message.HasField("recency_pages") else None,
    )

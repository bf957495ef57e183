"""Log lines of the choice between kernels of products; apart, so that benches need no logger."""

from collections.abc import Mapping

import structlog

from decode_service.engine.batched.product_choice import MeasuredProduct, name_of
from decode_service.engine.batched.products import ProductKind

_log = structlog.get_logger(__name__)


def log_choice(rows: int, found: Mapping[ProductKind, MeasuredProduct]) -> None:
    """What serves at a number of rows, what was timed, and what does not count."""
    for kind, each in found.items():
        if each.rejected:
            _log.warning(
                "a kernel of products is not used",
                rows=rows,
                product=kind.value,
                reasons=dict(each.rejected),
            )
    _log.info(
        "products of a step have their kernels",
        rows=rows,
        **{kind.value: name_of(each.plan) for kind, each in found.items()},
        microseconds={kind.value: dict(each.microseconds) for kind, each in found.items()},
    )

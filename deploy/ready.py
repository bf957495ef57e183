"""The one machine-readable line that a role prints when it is ready."""

import json
from dataclasses import dataclass

from shared.errors import InternalError

READY_PREFIX = "TANDEM_READY "


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyLine:
    """Where a ready role listens; addresses are `host:port`."""

    role: str
    """prefill, decode or gateway."""
    worker_id: str
    """The role's own name for itself."""
    admin: str
    """Metrics and health."""
    address: str = ""
    """gRPC of a worker."""
    rest: str = ""
    """REST of the gateway."""
    grpc: str = ""
    """gRPC of the gateway."""


def parse_ready(line: str) -> ReadyLine | None:
    """Reads a line of a role's standard output; None when it is any other line.

    Raises:
        InternalError: it begins like a ready line and is not one.
    """
    if not line.startswith(READY_PREFIX):
        return None
    try:
        fields = json.loads(line.removeprefix(READY_PREFIX))
        return ReadyLine(
            role=fields["role"],
            worker_id=fields["worker_id"],
            admin=fields["admin"],
            address=fields.get("address", ""),
            rest=fields.get("rest", ""),
            grpc=fields.get("grpc", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InternalError(
            f"a role's ready line cannot be read ({error}): {line.strip()!r}; roles and `tandem` "
            "must be of one version"
        ) from error

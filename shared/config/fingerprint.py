"""One short name for all settings of a process, to see at a glance which replicas differ."""

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_OWN_TO_A_REPLICA = frozenset(
    {"host", "admin_host", "port", "worker_id", "advertise_address", "device"}
)


def config_fingerprint(config: "DataclassInstance") -> str:
    """Twelve hex digits that change with any setting but names, addresses and devices."""
    values: dict[str, Any] = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in _OWN_TO_A_REPLICA and not field.name.endswith("_port")
    }
    # Settings may hold passwords in URLs; a short hash of all of them tells none.
    return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()[:12]

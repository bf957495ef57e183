"""Where a worker's memory is, so that others can tell how near they are to it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """As far as the worker knows; what it does not know is empty."""

    host: str = ""
    """Boot id of its machine: workers with the same one share that machine's memory."""
    gpu: str = ""
    """UUID of its GPU."""
    nvlink_peers: tuple[str, ...] = ()
    """UUIDs of the GPUs that NVLink joins with its own; told by transports that copy over it."""

"""What a worker says of itself; nothing of it changes while the process lives."""

from dataclasses import dataclass

from shared.types.model_identity import ModelIdentity
from shared.types.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Identity and abilities of a worker."""

    role: str
    """`prefill` or `decode`."""
    worker_id: str
    """Its name."""
    incarnation: str
    """Fresh for every process."""
    model: ModelIdentity
    """Model it serves."""
    max_model_len: int
    """Longest context in tokens."""
    version: str
    """Package version."""
    capabilities: tuple[str, ...]
    """What a peer may rely on beyond the contract's first version."""
    device: str
    """Device it computes on, for example cpu."""
    attention_backend: str
    """Attention backend in use."""
    rejected_backends: tuple[str, ...]
    """`name: reason` of every backend that is not used."""
    transports: tuple[str, ...]
    """Accepted transports, best first."""
    profile: str
    """Model profile in use, and whether it is calibrated."""
    methods_hash: str
    """Changes with the pruning and page selection of the profile."""
    topology: Topology
    """Where its memory is."""
    rejected_transports: tuple[str, ...] = ()
    """`name: reason` of every transport that its settings name and that does not work there."""
    faults: str = ""
    """Faults that it makes on purpose in its transfers; empty when it makes none."""

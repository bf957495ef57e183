"""The question both ends ask before bytes move: do we speak of the same cache?"""

from dataclasses import dataclass, field

from shared.errors import TransportError
from shared.transport.frames import PROTOCOL_VERSION
from shared.types.model_identity import ModelIdentity
from shared.types.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What one end says of itself."""

    model: ModelIdentity
    """Its model."""
    incarnation: str
    """Fresh for every process."""
    protocol: int = PROTOCOL_VERSION
    """Version of its frame format."""
    place: Topology = field(default_factory=Topology)
    """Where its memory is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectOffer:
    """A transport that writes into the slab itself, as its receiver offers it."""

    name: str
    """Name of the transport."""
    fingerprint: str
    """Hash of what both ends must have alike, read before anything else of it."""


def check_peer(own: Peer, other: Peer, *, expected_incarnation: str = "") -> None:
    """Compares two ends.

    Args:
        own: this end.
        other: the other end.
        expected_incarnation: the incarnation that gave the grant; empty when not known.

    Raises:
        TransportError: they do not fit; the text names the differing field and both values.
    """
    if own.protocol != other.protocol:
        raise TransportError(
            f"transfer protocol {own.protocol} here, {other.protocol} there: the workers run "
            "different versions; upgrade the older one"
        )
    differences = own.model.differences(other.model)
    if differences:
        raise TransportError(
            f"the workers hold different KV caches ({'; '.join(differences)}): they serve "
            "different models, weights or dtypes; start both with the same ones"
        )
    if expected_incarnation and other.incarnation != expected_incarnation:
        raise TransportError(
            f"incarnation {expected_incarnation!r} gave the grant and {other.incarnation!r} "
            "answers: the worker restarted and its slab is gone; reserve again"
        )

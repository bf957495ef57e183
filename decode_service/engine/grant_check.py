"""Whether who pushes or commits holds the grant: slot, generation and token must be its own."""

import hmac

from decode_service.engine.handoffs import HandoffCounters, Reservation, stale
from shared.errors import StaleWriteError

TOKEN_REFUSED = "handoff_token_refused"  # noqa: S105  a code, not a secret


def check_grant(
    granted: Reservation, *, slot: int, generation: int, token: bytes, counters: HandoffCounters
) -> None:
    """Compares what a commit says with what was granted; a wrong one is not obeyed at all.

    Raises:
        StaleWriteError: another slot, generation or token.
    """
    check_token(granted, token, counters=counters)
    if (granted.lease.slot, granted.lease.generation) != (slot, generation):
        granted.machine.late_events += 1
        counters.late += 1
        raise stale(granted.key, "was committed with another slot or generation than granted")


def check_token(granted: Reservation, token: bytes, *, counters: HandoffCounters) -> None:
    """Compares tokens in constant time; a stranger changes nothing, and the handoff goes on.

    Raises:
        StaleWriteError: another token.
    """
    if not hmac.compare_digest(granted.token, token):
        counters.tokens_refused += 1
        raise StaleWriteError(
            f"handoff {granted.key.handoff_id!r} attempt {granted.key.attempt} was named without "
            "the token of its grant: a sender of another version, or a stranger; upgrade the "
            "prefill worker, or see who reaches this port",
            code=TOKEN_REFUSED,
        )

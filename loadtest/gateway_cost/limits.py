"""What the gateway must keep to on 2 cores, and whether it did."""

from collections.abc import Mapping
from typing import Any

ADDED_TTFT_P50_MS = 3.0
ADDED_TTFT_P99_MS = 15.0
TOKENS_PER_S = 8_000.0
OF_RELAY = 0.5
ADDED_LONG_P50_MS = 6.0
"""Of prompts up to `LONGEST_TOKENS` that come as ids: what a served pair may add in all, so that a
gateway alone stays well below."""
LONGEST_TOKENS = 32_000


def limits(
    first_token: Mapping[str, Any],
    throughput: Mapping[str, Mapping[str, Any]],
    long_prompts: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, object]]:
    """Each limit with what was measured, JSON-ready.

    Args:
        first_token: summary of each arm's arrivals.
        throughput: by tokens a message, summaries and ratios; the shortest messages count, for
            longer ones are easier.
        long_prompts: by length, the added milliseconds of each client; None where not measured.
    """
    added = first_token["gateway"]["added_ttft_ms"]
    found = {
        "added_ttft_p50_ms": _at_most(added["p50"], ADDED_TTFT_P50_MS),
        "added_ttft_p99_ms": _at_most(added["p99"], ADDED_TTFT_P99_MS),
    }
    if throughput:
        hardest = throughput[min(throughput, key=int)]
        rate = hardest["gateway"]["tokens_per_s"]["median"]
        ratio = hardest["tokens_per_s_of_relay"]["median"]
        found["tokens_per_s"] = _at_least(rate, TOKENS_PER_S)
        found["tokens_per_s_of_relay"] = _at_least(ratio, OF_RELAY)
    found |= {
        f"added_ttft_p50_ms_{tokens}_ids_{client}": _at_most(added["median"], ADDED_LONG_P50_MS)
        for tokens, clients in (long_prompts or {}).items()
        if int(tokens) <= LONGEST_TOKENS
        for client, added in clients.items()
    }
    return found


def _at_most(measured: float, limit: float) -> dict[str, object]:
    return {"measured": measured, "at_most": limit, "met": measured <= limit}


def _at_least(measured: float, limit: float) -> dict[str, object]:
    return {"measured": measured, "at_least": limit, "met": measured >= limit}

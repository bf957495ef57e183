"""What the gateway must keep to on 2 cores, and whether it did."""

from collections.abc import Mapping
from typing import Any

ADDED_TTFT_P50_MS = 3.0
ADDED_TTFT_P99_MS = 15.0
TOKENS_PER_S = 8_000.0
OF_RELAY = 0.5


def limits(
    first_token: Mapping[str, Any], throughput: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, object]]:
    """Each limit with what was measured, JSON-ready.

    Args:
        first_token: summary of each arm's arrivals.
        throughput: by tokens a message, summaries and ratios; the shortest messages count, for
            longer ones are easier.
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
    return found


def _at_most(measured: float, limit: float) -> dict[str, object]:
    return {"measured": measured, "at_most": limit, "met": measured <= limit}


def _at_least(measured: float, limit: float) -> dict[str, object]:
    return {"measured": measured, "at_least": limit, "met": measured >= limit}

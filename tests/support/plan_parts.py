"""Profiles and requests of plans, with times that can be reckoned by hand."""

from collections.abc import Callable, Sequence
from typing import Any

from loadtest.load.plan import PlannedRequest
from loadtest.load.workloads import RequestClass, Sizes, slo
from loadtest.plan.arms import Arm
from loadtest.plan.cluster import Cluster, GatewayRules, Simulated, Split
from loadtest.plan.profile import MeasuredProfile
from loadtest.plan.profile_file import profile_of
from loadtest.plan.work import costs_of

FULL = Arm("full", 1.0, "dense")

KIND = RequestClass(
    name="chat", prompt=Sizes(1, 8_000), answer=Sizes(1, 8_000), slo=slo(ttft=1.0, tpot=0.1)
)


def profile_json(
    *,
    prefill_s: Callable[[int, float], float] = lambda tokens, rate: tokens * rate / 1000,
    step_s: Callable[[str, int, int], float] = lambda _policy, _batch, _context: 0.01,
    **other: Any,
) -> dict[str, Any]:
    """A profile as its file has it; times are lines between few points."""
    found: dict[str, Any] = {
        "format": 1,
        "model": {
            "name": "made up",
            "num_layers": 8,
            "whole_layers": 2,
            "token_bytes": 1024,
            "max_model_len": 16_384,
        },
        "pruning": {"keep_rate": 0.2, "floor_tokens": 16, "bypass_below": 64},
        "prefill": [
            {
                "tokens": tokens,
                "keep_rate": rate,
                "seconds": prefill_s(tokens, rate),
                "ready": [0.25, 0.5, 0.75, 1.0],
            }
            for rate in (0.2, 1.0)
            for tokens in (1, 16_384)
        ],
        "decode": [
            {
                "policy": policy,
                "batch": batch,
                "context": context,
                "seconds": step_s(policy, batch, context),
            }
            for policy in ("dense", "delta")
            for batch in (1, 8, 64)
            for context in (1, 1_024, 16_384)
        ],
        "transport": "grpc",
        "transfer": [{"nbytes": 1, "seconds": 1e-9}, {"nbytes": 1 << 30, "seconds": 1e-9}],
        "overheads": {"first_token_s": 0.0, "handoff_s": 0.0},
        "limits": {
            "max_batch": 64,
            "pages_front": 100_000,
            "pages_rest": 100_000,
            "slab_bytes": 1 << 40,
        },
    }
    return found | other


def made_profile(**changes: Any) -> MeasuredProfile:
    """The profile of `profile_json`."""
    return profile_of(profile_json(**changes))


def requests_of(sizes: Sequence[tuple[int, int]]) -> list[PlannedRequest]:
    """Requests of (prompt tokens, answer tokens)."""
    return [
        PlannedRequest(index=index, kind=KIND, prompt_tokens=prompt, answer_tokens=answer)
        for index, (prompt, answer) in enumerate(sizes)
    ]


def simulated(
    profile: MeasuredProfile,
    sizes: Sequence[tuple[int, int]],
    moments: Sequence[float],
    *,
    split: Split | None = None,
    arm: Arm = FULL,
    rules: GatewayRules | None = None,
    seed: int = 0,
) -> Simulated:
    """A whole run; nothing may be held at its end."""
    cluster = Cluster(
        profile,
        split=split or Split(prefill=1, decode=1),
        rules=rules or GatewayRules(),
        costs=costs_of(requests_of(sizes), profile, arm),
        seed=seed,
    )
    found = cluster.run(moments)
    cluster.check_idle()
    return found

"""What an attempt asks its workers for."""

from collections.abc import Sequence

from gateway.clients.events import DecodeCall, PrefillCall, Target
from gateway.run_state import RunState
from shared.types.handoff import HandoffKey


def prefill_call(state: RunState, *, handoff: HandoffKey, targets: Sequence[Target]) -> PrefillCall:
    """To read the prompt, and in a replay the answer so far with it.

    Args:
        state: the request.
        handoff: names the attempt.
        targets: decode workers in order of preference.
    """
    job, earlier = state.job, state.earlier_tokens
    return PrefillCall(
        handoff=handoff,
        token_ids=(*job.prompt_ids, *earlier) if earlier else job.prompt_ids,
        sampling=job.sampling,
        stop=job.stop,
        grammar=job.plan.grammar,
        options=job.options,
        targets=tuple(targets),
        branches=job.branches,
        forced_first_tokens=state.last_shown,
        earlier_tokens=len(earlier),
    )


def decode_call(state: RunState, *, handoff: HandoffKey, branch: int) -> DecodeCall:
    """To go on with an answer from the token that was shown last.

    Args:
        state: the request.
        handoff: names the attempt whose KV it needs.
        branch: which answer.
    """
    job = state.job
    return DecodeCall(
        handoff=handoff,
        branch=branch,
        first_token=state.last_shown[branch],
        earlier_tokens=state.earlier_tokens,
        sampling=job.sampling,
        stop=job.stop,
        grammar=job.plan.grammar,
        options=job.options,
    )

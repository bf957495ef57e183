"""Times of whole generations, and of their steps by context."""

import time
from collections.abc import Callable
from typing import Any

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.batched.runner import BatchRunner
from decode_service.engine.batched.step_shape import FEWEST_TOKENS
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from loadtest.micro.generation_rows import DELTA, GenerationPlan, GenerationRows
from shared.errors import InternalError
from shared.model.transformer import Transformer

_TOLD_EVERY = 2048
"""Steps between two lines of progress."""


def time_generations(
    model: Transformer,
    plan: GenerationPlan,
    *,
    generations: int,
    window: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Some generations of every arm, by turns.

    Args:
        model: the decoder.
        plan: sizes.
        generations: of each arm.
        window: steps whose mean is told.
        progress: is told what happens.

    Returns:
        `contexts`: tokens of a row at the end of each window; `runs` by arm: `seconds`,
        `tokens_per_s`, `step_ms` by window, `attended` slots of a row; `equal_tokens`, by turn, of
        how many tokens that both arms draw while they read everything as many are equal;
        `warm_up_s`, `kv_bytes`.

    Raises:
        InternalError: a row did not take all steps, or read other slots than its method says.
    """
    held = GenerationRows(model, plan)
    by_row = DecodeRunner(model, held.cache, attention=TorchDecodeAttention())
    runner = BatchRunner(
        model, held.cache, by_row=by_row, max_batch=plan.batch, max_tokens=plan.context
    )
    warm_up_s = _warm_up(runner, held)
    progress(f"graphs were captured in {warm_up_s:.1f} s")
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in held.arms}
    equal = []
    for _ in range(generations):
        answers = {}
        for arm in held.arms:
            with held.rows(arm) as rows:
                run = _generate(runner, rows, plan, window=window, tell=_teller(progress, arm))
                answers[arm] = [row.generated[: _read_whole(plan)] for row in rows]
            runs[arm].append(run)
            progress(f"{arm}: {run['seconds']:.1f} s, {run['tokens_per_s']:,.0f} tokens/s")
        equal.append(_equal_tokens(*answers.values()))
    return {
        "window": window,
        "contexts": [plan.prompt_tokens + done for done in _ends(plan, window)],
        "runs": runs,
        "equal_tokens": equal,
        "warm_up_s": warm_up_s,
        "kv_bytes": held.kv_bytes,
    }


def _warm_up(runner: BatchRunner, held: GenerationRows) -> float:
    """One step of every graph that a generation replays, as a worker captures them beforehand."""
    started, plan = time.perf_counter(), held.plan
    contexts = {plan.prompt_tokens, max(plan.budget_tokens, plan.prompt_tokens)}
    tokens = FEWEST_TOKENS  # from here on the graphs double
    while tokens < plan.context:
        contexts.add(max(tokens, plan.prompt_tokens))
        tokens *= 2
    for context in sorted(each for each in contexts if each < plan.context):
        for arm in held.arms:
            with held.rows(arm, context=context) as rows:
                runner.step(rows)
    return time.perf_counter() - started


def _generate(
    runner: BatchRunner,
    rows: list[Sequence],
    plan: GenerationPlan,
    *,
    window: int,
    tell: Callable[[int, float], None],
) -> dict[str, Any]:
    ends, marks = _ends(plan, window), []
    started = time.perf_counter()
    done = 0
    for end in ends:
        for _ in range(end - done):
            runner.step(rows)
        done = end
        marks.append(time.perf_counter())
        tell(done, marks[-1] - started)
    _require_whole(rows, plan)
    seconds = marks[-1] - started
    begins, firsts = [started, *marks[:-1]], [0, *ends[:-1]]
    return {
        "seconds": seconds,
        "tokens_per_s": plan.batch * plan.steps / seconds,
        "step_ms": [
            (mark - begin) * 1000 / (end - first)
            for mark, begin, end, first in zip(marks, begins, ends, firsts, strict=True)
        ],
        "attended": rows[0].attended,
        "dense": rows[0].dense,
    }


def _ends(plan: GenerationPlan, window: int) -> list[int]:
    """Steps done at the end of each window; the last one may be shorter."""
    whole = list(range(window, plan.steps + 1, window))
    return whole if whole and whole[-1] == plan.steps else [*whole, plan.steps]


def _require_whole(rows: list[Sequence], plan: GenerationPlan) -> None:
    chooses = rows[0].policy.name == DELTA and plan.context > plan.budget_tokens
    for row in rows:
        if row.steps != plan.steps or (row.attended < row.dense) is not chooses:
            raise InternalError(
                f"a row took {row.steps} of {plan.steps} steps and read {row.attended} of "
                f"{row.dense} slots: it did not do the work that is timed; report this"
            )


def _read_whole(plan: GenerationPlan) -> int:
    """Tokens of an answer that are drawn while the budget covers every page."""
    return 1 + max(0, min(plan.context, plan.budget_tokens) - plan.prompt_tokens)


def _equal_tokens(ours: list[list[int]], theirs: list[list[int]]) -> dict[str, int]:
    pairs = [
        (a, b) for one, two in zip(ours, theirs, strict=True) for a, b in zip(one, two, strict=True)
    ]
    return {"equal": sum(a == b for a, b in pairs), "of": len(pairs)}


def _teller(progress: Callable[[str], None], arm: str) -> Callable[[int, float], None]:
    def tell(done: int, seconds: float) -> None:
        if done % _TOLD_EVERY == 0:
            progress(f"{arm}: {done} steps in {seconds:.1f} s")

    return tell

"""From logits to a token: a draw depends on its own row and on (seed, branch, draw) alone.

Neither the batch, nor the worker, nor earlier draws matter: a retry elsewhere repeats the tokens.
Shapes: B rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shared.errors import InternalError
from shared.types.sampling import SampledToken, SamplingParams

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""

_HEAD = 1024
"""Candidates sorted first for a nucleus; a flat distribution that needs more is sorted whole."""
_FARTHEST = 1e300
"""Scores stay within this, far beyond any logit."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawRow:
    """All that one row's draw depends on, beside its logits."""

    params: SamplingParams
    """How to draw."""
    branch: int = 0
    """Which of the answers to one prompt."""
    draw: int = 0
    """Draws of this branch before this one."""
    prompt_ids: Sequence[int] = ()
    """For the repetition penalty."""
    generated_ids: Sequence[int] = ()
    """For all three penalties."""
    banned_ids: Sequence[int] = ()
    """Tokens that must not come now."""
    allowed_V: npt.NDArray[np.bool_] | None = None
    """The only tokens that may come now [V]; None: any."""


def sample(  # noqa: PLR0913 - one name for each fact that a draw depends on
    logits_V: Tensor,
    *,
    params: SamplingParams,
    branch: int = 0,
    draw: int = 0,
    prompt_ids: Sequence[int] = (),
    generated_ids: Sequence[int] = (),
    banned_ids: Sequence[int] = (),
) -> SampledToken:
    """Draws one token from float32 logits [V]; see `DrawRow` for the arguments.

    Raises:
        InternalError: the logits are not numbers, or every token is ruled out.
    """
    row = DrawRow(
        params=params,
        branch=branch,
        draw=draw,
        prompt_ids=prompt_ids,
        generated_ids=generated_ids,
        banned_ids=banned_ids,
    )
    return sample_rows(logits_V[None], [row])[0]


def best_tokens(logits_BV: Tensor) -> Tensor:
    """Highest logit of each row and its token, float64 [2, B], so that one copy fetches both."""
    best_B, token_B = logits_BV.max(dim=-1)
    return torch.stack((best_B.double(), token_B.double()))


def sample_rows(
    logits_BV: Tensor, rows: Sequence[DrawRow], *, best_2B: Tensor | None = None
) -> list[SampledToken]:
    """Draws one token a row from float32 logits [B, V]; equal to `sample` of each row.

    Args:
        logits_BV: of at least as many rows; further ones are left alone.
        rows: what each draw depends on.
        best_2B: `best_tokens` of the logits, where they are known already.

    Raises:
        InternalError: some logits are not numbers, or every token of a row is ruled out.
    """
    assert logits_BV.shape[0] >= len(rows)
    plain = [index for index, row in enumerate(rows) if plain_greedy(row)]
    drawn: dict[int, SampledToken] = {}
    if plain:
        # Rows that ask for nothing else stay one operation, whatever the others of the batch ask.
        best, tokens = _best_of(logits_BV, plain, len(rows), best_2B)
        _check(best)
        drawn = {i: SampledToken(token_id=int(t)) for i, t in zip(plain, tokens, strict=True)}
    return [
        drawn[index] if index in drawn else _sample_row(logits_BV[index], row)
        for index, row in enumerate(rows)
    ]


def plain_greedy(row: DrawRow) -> bool:
    """Whether the first of the highest raw logits is the answer and nothing else is asked for."""
    p = row.params
    unchanged = not p.presence_penalty and not p.frequency_penalty and p.repetition_penalty == 1.0
    return (
        p.temperature <= 0.0
        and unchanged
        and not p.logit_bias
        and p.logprobs is None
        and not row.banned_ids
        and row.allowed_V is None
    )


def uniform(*, seed: int, branch: int, draw: int) -> float:
    """The number in [0, 1) of one draw: Philox, keyed by seed and branch, counted by draw."""
    key = np.array([seed, branch], dtype=np.uint64)
    raw = np.random.Philox(key=key, counter=np.array([draw, 0, 0, 0], dtype=np.uint64)).random_raw()
    return float(int(raw) >> 11) * 2.0**-53


def log_probabilities(logits_V: Tensor) -> Tensor:
    """Natural-log probabilities [V] of the unmodified distribution, at least LOWEST_LOGPROB."""
    return torch.log_softmax(logits_V.float(), dim=-1).clamp_(min=LOWEST_LOGPROB)


def _best_of(
    logits_BV: Tensor, plain: list[int], count: int, best_2B: Tensor | None
) -> tuple[list[float], list[float]]:
    """Highest logits and tokens of some of the first `count` rows."""
    if best_2B is not None:
        best, tokens = best_2B.tolist()
        return [best[index] for index in plain], [tokens[index] for index in plain]
    chosen = logits_BV[:count] if len(plain) == count else logits_BV[plain]
    best, tokens = best_tokens(chosen).tolist()
    return best, tokens


def _sample_row(logits_V: Tensor, row: DrawRow) -> SampledToken:
    """Draws for a row that asks for more than the highest logit."""
    scores_V = _adjusted(logits_V, row)
    token_id = int(scores_V.argmax()) if row.params.temperature <= 0.0 else _draw(scores_V, row)
    if row.params.logprobs is None:
        return SampledToken(token_id=token_id)
    logprobs_V = log_probabilities(logits_V).cpu().numpy()
    return SampledToken(
        token_id=token_id,
        logprob=float(logprobs_V[token_id]),
        top=_best(logprobs_V, count=row.params.logprobs),
    )


def _adjusted(logits_V: Tensor, row: DrawRow) -> Floats:
    """Logits after penalties, bias, bans and the mask, float64."""
    p = row.params
    scores_V = logits_V.detach().double().cpu().numpy().copy()
    if p.repetition_penalty != 1.0:
        seen = np.unique(np.array([*row.prompt_ids, *row.generated_ids], dtype=np.int64))
        old = scores_V[seen]
        with np.errstate(over="ignore"):
            new = np.where(old > 0.0, old / p.repetition_penalty, old * p.repetition_penalty)
        # Any positive number is a legal penalty; the smallest ones push a score out of range.
        scores_V[seen] = np.where(np.isfinite(old), new.clip(-_FARTHEST, _FARTHEST), old)
    if (p.presence_penalty or p.frequency_penalty) and row.generated_ids:
        ids, counts = np.unique(np.array(row.generated_ids, dtype=np.int64), return_counts=True)
        scores_V[ids] -= p.presence_penalty + p.frequency_penalty * counts
    for token_id, bias in p.logit_bias:
        scores_V[token_id] += bias
    scores_V[np.array(row.banned_ids, dtype=np.int64)] = -np.inf
    if row.allowed_V is not None:
        scores_V[~row.allowed_V] = -np.inf
    _check([float(scores_V.max())])
    return scores_V


def _draw(scores_V: Floats, row: DrawRow) -> int:
    """Inverse of the cumulative distribution of the surviving tokens, in id order."""
    p = row.params
    with np.errstate(over="ignore"):  # a tiny temperature: all but the best get nothing
        weights_V = np.exp((scores_V - scores_V.max()) / p.temperature)
    if p.min_p > 0.0:
        weights_V[weights_V < p.min_p] = 0.0
    if p.top_k > 0 or p.top_p < 1.0:
        weights_V = _keep(weights_V, top_k=p.top_k, top_p=p.top_p)
    cumulative_V = np.cumsum(weights_V)
    point = uniform(seed=p.seed, branch=row.branch, draw=row.draw) * cumulative_V[-1]
    token_id = int(np.searchsorted(cumulative_V, point, side="right"))
    return min(token_id, int(np.flatnonzero(weights_V)[-1]))


def _keep(weights_V: Floats, *, top_k: int, top_p: float) -> Floats:
    """Zeroes all but the top_k tokens, then all but the fewest that hold top_p of what is left."""
    vocabulary = weights_V.shape[0]
    limit = min(top_k, vocabulary) if top_k > 0 else vocabulary
    ranked = _ranked(weights_V, min(limit, _HEAD))
    mass = np.cumsum(weights_V[ranked])
    total = mass[-1] if ranked.size == limit else float(weights_V.sum())
    if ranked.size < limit and (top_k > 0 or mass[-1] < top_p * total):
        ranked = _ranked(weights_V, limit)
        mass = np.cumsum(weights_V[ranked])
        total = mass[-1]
    if top_p < 1.0:
        ranked = ranked[: int(np.searchsorted(mass, top_p * total, side="left")) + 1]
    kept_V = np.zeros_like(weights_V)
    kept_V[ranked] = weights_V[ranked]
    return kept_V


def _ranked(weights_V: Floats, count: int) -> npt.NDArray[np.int64]:
    """Ids of the `count` largest, largest first, ties to the lower id."""
    if count < weights_V.shape[0]:
        floor = np.partition(weights_V, -count)[-count]
        candidates = np.flatnonzero(weights_V >= floor)
    else:
        candidates = np.arange(weights_V.shape[0])
    order = np.lexsort((candidates, -weights_V[candidates]))
    return candidates[order[:count]]


def _best(logprobs_V: npt.NDArray[np.float32], *, count: int) -> tuple[tuple[int, float], ...]:
    if count <= 0:
        return ()
    ids = _ranked(logprobs_V.astype(np.float64), min(count, logprobs_V.shape[0]))
    return tuple((int(index), float(logprobs_V[index])) for index in ids)


def _check(best: Sequence[float]) -> None:
    """The highest scores must be numbers above minus infinity."""
    if not all(map(math.isfinite, best)):
        raise InternalError(
            "no token can be drawn: logits are not finite or every token is ruled out; the "
            "weights may be damaged or "
            "the dtype too narrow, check them and report this"
        )

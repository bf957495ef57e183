"""Kernels of a decode step at the shapes of whole models: inputs, float64 references, times.

Shapes: B rows, H query heads, G KV heads, D head size, P pages of the pool, S slots of a page, M
table width, T tokens, U pages of a row.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from decode_service.kernels.merge_pieces import AttentionOutput
from decode_service.kernels.page_scores import Board, PositionMaps, project_scores, score_pages
from decode_service.kernels.paged_attention import (
    LogitDump,
    PageTables,
    paged_attention,
)
from decode_service.kernels.select_pages import Budgets, ChosenPages, select_pages
from decode_service.kernels.split_plan import SplitPlan, plan_splits
from loadtest.micro.kernel_parity import relative_error, require_small
from loadtest.micro.kernel_timing import against_memory, time_on_gpu
from shared.kv.geometry import PAGE_SIZE, pages_for

_DELTA_LAYERS = 3
_CHECKED_ROWS = 4
_SWEEP_REPLAYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """A batch at one layer of a model."""

    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    """Of the model; for the share that selection has."""
    copies: int = 4
    """Layers in memory that take turns, so that no cache serves a layer twice."""
    budget: int = 64
    """Page budget K."""
    recency: int = 8
    """Recency pages L."""

    @property
    def pages(self) -> int:
        """Pages of a row."""
        return pages_for(self.tokens)

    def kv_bytes(self, tokens: int, itemsize: int) -> int:
        """Keys and values of `tokens` tokens of every row."""
        return self.batch * tokens * 2 * self.kv_heads * self.head_dim * itemsize

    def plan(self, tokens: int) -> SplitPlan:
        """How attention over `tokens` tokens a row is cut."""
        return plan_splits(
            rows=self.batch, kv_heads=self.kv_heads, most_tokens=tokens, head_dim=self.head_dim
        )


class DecodeCase:
    """The tensors of a shape, and each kernel on them.

    Args:
        shape: sizes.
        device: where it runs.
        dtype: of queries, keys and values.
        plan: of dense attention; None takes the shape's.
    """

    def __init__(
        self,
        shape: DecodeShape,
        *,
        device: torch.device,
        dtype: torch.dtype,
        plan: SplitPlan | None = None,
    ) -> None:
        self.shape, self.device = shape, device
        generator = torch.Generator(device).manual_seed(5)
        self._generator = generator
        wide, batch = shape.pages, shape.batch
        size = (batch * wide + 1, PAGE_SIZE, shape.kv_heads, shape.head_dim)
        self.kv = [
            (
                torch.empty(size, dtype=dtype, device=device),
                torch.empty(size, dtype=dtype, device=device),
            )
            for _ in range(shape.copies)
        ]
        self.fill()
        order = torch.randperm(batch * wide, generator=generator, device=device)
        self.tables = PageTables(
            pages_BM=order.reshape(batch, wide).int(), lengths_B=self._ints(shape.tokens)
        )
        q_size = (batch, shape.heads, shape.head_dim)
        self.q_BHD = torch.randn(q_size, generator=generator, device=device).to(dtype)
        self.plan = plan or shape.plan(shape.tokens)
        self.sparse_plan = shape.plan(min(shape.budget, wide) * PAGE_SIZE)
        self.dense_out = AttentionOutput.empty(self.q_BHD, self.plan)
        self.sparse_out = AttentionOutput.empty(self.q_BHD, self.sparse_plan)
        self.logits = LogitDump.empty(self.q_BHD, self.plan, tokens=wide * PAGE_SIZE)
        self.scores_BU = torch.empty((batch, wide), dtype=torch.float32, device=device)
        self.projected_BU = torch.empty_like(self.scores_BU)
        self.budgets = Budgets(
            pages_R=self._ints(shape.budget), recency_R=self._ints(shape.recency)
        )
        pages_RK = torch.zeros((batch, shape.budget), dtype=torch.int32, device=device)
        self.chosen = ChosenPages(pages_RK=pages_RK, visible_R=self._ints(0))
        self.board, self.kept_board, self.kept_lengths_B = self._boards()

    def fill(self) -> None:
        """Fresh random keys and values."""
        for keys, values in self.kv:
            keys.normal_(generator=self._generator)
            values.normal_(generator=self._generator)

    def dense(self, call: int) -> None:
        """Attention over every token."""
        kv_PSGD = self.kv[call % len(self.kv)]
        paged_attention(self.q_BHD, kv_PSGD, self.tables, plan=self.plan, output=self.dense_out)

    def dense_with_dump(self, call: int) -> None:
        """The same, keeping every logit."""
        kv_PSGD = self.kv[call % len(self.kv)]
        paged_attention(
            self.q_BHD,
            kv_PSGD,
            self.tables,
            plan=self.plan,
            output=self.dense_out,
            dump=self.logits,
        )

    def score(self, call: int) -> None:
        """Page scores and the board from the logits."""
        del call
        score_pages(
            self.logits,
            self.dense_out.lse_BH,
            self.tables.lengths_B,
            plan=self.plan,
            scores_BU=self.scores_BU,
            board=self.board,
        )

    def project(self, call: int) -> None:
        """Page scores of a layer that kept every other token."""
        del call
        project_scores(self.kept_board, self.kept_lengths_B, scores_BU=self.projected_BU)

    def select(self, call: int) -> None:
        """The choice of pages."""
        del call
        select_pages(
            self.scores_BU,
            self.tables.pages_BM,
            self.tables.lengths_B,
            budgets=self.budgets,
            chosen=self.chosen,
        )

    def sparse(self, call: int) -> None:
        """Attention over the choice."""
        kv_PSGD = self.kv[call % len(self.kv)]
        tables = PageTables(pages_BM=self.chosen.pages_RK, lengths_B=self.chosen.visible_R)
        paged_attention(self.q_BHD, kv_PSGD, tables, plan=self.sparse_plan, output=self.sparse_out)

    def steps(self) -> dict[str, Callable[[int], None]]:
        """Every kernel by name, in an order in which each finds its input."""
        return {
            "dense": self.dense,
            "dense_with_dump": self.dense_with_dump,
            "score": self.score,
            "project": self.project,
            "select": self.select,
            "sparse": self.sparse,
        }

    def moved_bytes(self) -> dict[str, int]:
        """Bytes that each kernel cannot do without."""
        shape, itemsize = self.shape, self.q_BHD.element_size()
        tokens = shape.batch * shape.tokens
        kv = shape.kv_bytes(shape.tokens, itemsize)
        dump = 2 * shape.heads * tokens
        table = 4 * shape.batch * shape.pages
        few = min(shape.budget * PAGE_SIZE, shape.tokens)
        return {
            "dense": kv + table,
            "dense_with_dump": kv + table + dump,
            "score": dump + 4 * tokens + table,
            "project": 8 * tokens // 2 + table // 2,
            "select": 2 * table + 4 * shape.batch * shape.budget,
            "sparse": shape.kv_bytes(few, itemsize),
        }

    def _ints(self, value: int) -> Tensor:
        return torch.full((self.shape.batch,), value, dtype=torch.int32, device=self.device)

    def _boards(self) -> tuple[Board, Board, Tensor]:
        """The board as the Δ-layer sees it, as a layer of every other token does, its lengths."""
        shape, kept = self.shape, self.shape.tokens // 2
        board_BX = torch.zeros((shape.batch, shape.tokens), device=self.device)
        every_other = 2 * torch.arange(kept, dtype=torch.int32, device=self.device)
        prompt_B = self._ints(shape.tokens)
        maps = PositionMaps(
            positions_BC=every_other.expand(shape.batch, -1).contiguous(),
            slots_B=prompt_B,
            prompt_B=prompt_B,
        )
        kept_B = self._ints(kept)
        written = Board(scores_BX=board_BX, maps=maps)
        return written, Board(scores_BX=board_BX, maps=replace(maps, slots_B=kept_B)), kept_B


def check_decode(case: DecodeCase) -> dict[str, float]:
    """Errors of every kernel on rows of unlike lengths, their free slots full of NaN.

    Returns:
        Relative error of dense, score, project and sparse; selection is compared exactly.

    Raises:
        InternalError: an error is above its limit, or a choice is not the rule's.
    """
    keys, values = case.kv[0]
    lengths = [max(1, case.shape.tokens - 37 * row) for row in range(case.shape.batch)]
    case.tables.lengths_B.copy_(torch.tensor(lengths))
    for row, length in enumerate(lengths):
        free = case.tables.pages_BM[row, pages_for(length) :].long()
        partly = case.tables.pages_BM[row, (length - 1) // PAGE_SIZE]
        for memory in (keys, values):
            memory[free] = torch.nan
            memory[partly, (length - 1) % PAGE_SIZE + 1 :] = torch.nan
    poisoned = (case.dense_out.out_BHD, case.sparse_out.out_BHD, case.scores_BU, case.projected_BU)
    for tensor in poisoned:
        tensor.fill_(torch.nan)
    case.board.scores_BX.zero_()
    for step in case.steps().values():
        step(0)
    errors: dict[str, float] = {}
    for row in range(0, case.shape.batch, max(1, case.shape.batch // _CHECKED_ROWS)):
        for name, error in _row_errors(case, row, lengths[row]):
            require_small(f"{name} of a row of {lengths[row]} tokens", error)
            errors[name] = max(errors.get(name, 0.0), error)
    case.tables.lengths_B.fill_(case.shape.tokens)
    case.fill()
    for step in case.steps().values():
        step(0)
    return errors


def _row_errors(case: DecodeCase, row: int, length: int) -> Iterator[tuple[str, float]]:
    pages_M = case.tables.pages_BM[row]
    out_HD, probs_HT = _attention(case, row, pages_M, length)
    yield "dense", relative_error(case.dense_out.out_BHD[row], out_HD)
    score_T = probs_HT.amax(0)
    sums_U = _page_sums(score_T)
    num_pages = len(sums_U)
    yield "score", relative_error(case.scores_BU[row, :num_pages], sums_U)
    board_X = torch.zeros(case.shape.tokens, dtype=torch.float64, device=case.device)
    board_X[:length] = score_T
    kept = int(case.kept_lengths_B[row])
    kept_U = _page_sums(board_X[0 : 2 * kept : 2])
    yield "project", relative_error(case.projected_BU[row, : len(kept_U)], kept_U)
    wanted = _choice(case.scores_BU[row, :num_pages], case.shape)
    chosen_K = case.chosen.pages_RK[row, : len(wanted)]
    yield "select", 0.0 if torch.equal(chosen_K, pages_M[wanted]) else 1.0
    visible = int(case.chosen.visible_R[row])
    few_HD, _ = _attention(case, row, chosen_K, visible)
    yield "sparse", relative_error(case.sparse_out.out_BHD[row], few_HD)


def _attention(case: DecodeCase, row: int, pages_M: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Output [H, D] and probabilities [H, T] in float64."""
    keys, values = case.kv[0]
    pages = pages_M[: pages_for(length)].long()
    k_TGD, v_TGD = (x[pages].flatten(0, 1)[:length].double() for x in (keys, values))
    q_GQD = case.q_BHD[row].double().reshape(case.shape.kv_heads, -1, case.shape.head_dim)
    logits_GQT = torch.einsum("gqd,tgd->gqt", q_GQD, k_TGD) * case.shape.head_dim**-0.5
    probs_GQT = logits_GQT.softmax(-1)
    out_GQD = torch.einsum("gqt,tgd->gqd", probs_GQT, v_TGD)
    return out_GQD.flatten(0, 1), probs_GQT.flatten(0, 1)


def _page_sums(score_T: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(score_T, (0, -len(score_T) % PAGE_SIZE))
    return padded.reshape(-1, PAGE_SIZE).sum(1)


def _choice(scores_U: Tensor, shape: DecodeShape) -> Tensor:
    """Logical pages by a stable sort: page 0 and the recent ones first, then by score."""
    ranked = scores_U.clone()
    ranked[0] = torch.inf
    ranked[max(0, len(ranked) - shape.recency) :] = torch.inf
    order = torch.sort(ranked, descending=True, stable=True).indices
    return order[: shape.budget].sort().values


def time_decode(case: DecodeCase) -> dict[str, Any]:
    """Times of every kernel, and what selection costs beside dense attention of all layers."""
    moved = case.moved_bytes()
    times = {
        name: against_memory(time_on_gpu(step), moved_bytes=moved[name])
        for name, step in case.steps().items()
    }
    us = {name: figures["us"]["median"] for name, figures in times.items()}
    one = us["dense_with_dump"] - us["dense"] + us["score"] + us["project"] + us["select"]
    dense = us["dense"] * case.shape.layers
    return {
        "kernels": times,
        "selection_us": one,
        "selection_over_dense_attention": _DELTA_LAYERS * one / dense,
        "dense_over_sparse": us["dense"] / us["sparse"],
    }


def sweep_decode(
    shape: DecodeShape, *, device: torch.device, dtype: torch.dtype, best: int = 5
) -> list[dict[str, Any]]:
    """The fastest plans of dense attention, the fastest first."""
    own = shape.plan(shape.tokens)
    found: list[tuple[SplitPlan, dict[str, float]]] = []
    for splits in sorted({max(1, own.splits // 2), own.splits, min(128, own.splits * 2)}):
        case = DecodeCase(shape, device=device, dtype=dtype, plan=replace(own, splits=splits))
        for block, warps, stages in itertools.product((64, 128), (4, 8), (2, 3, 4)):
            case.plan = SplitPlan(splits=splits, block=block, warps=warps, stages=stages)
            us = _tried(case.dense)
            if us is not None:
                found.append((case.plan, us))
        del case
        torch.cuda.empty_cache()
    found.sort(key=lambda trial: trial[1]["median"])
    return [{"plan": asdict(plan), "us": us} for plan, us in found[:best]]


def _tried(work: Callable[[int], None]) -> dict[str, float] | None:
    """Times, or None where the sizes do not fit the device."""
    from triton.runtime.errors import OutOfResources  # noqa: PLC0415

    try:
        return time_on_gpu(work, replays=_SWEEP_REPLAYS)
    except OutOfResources:
        return None

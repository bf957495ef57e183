"""Which rows the kernels serve, and what they must know of one."""

from dataclasses import dataclass
from enum import Enum

from decode_service.engine.sequence import Sequence
from decode_service.sparsity.base import LayerRole
from decode_service.sparsity.delta import DeltaPolicy
from decode_service.sparsity.dense import DensePolicy
from shared.types.kv_manifest import PositionKind
from shared.types.methods import PageHeads, SparsityParams

EVERY_PAGE = 1 << 30
"""Budget of a row that reads everything."""


class LeftOut(Enum):
    """Why no kernel serves a row; a metric label."""

    POLICY = "policy"
    """Its policy, or what it asks of delta: a choice a KV head, reuse, or a mass."""
    KV_SELECT_HEAD = "kv_select_head"
    """Its KV heads hold other tokens each, and delta's kernels choose for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """What does not change over a row's life."""

    roles: tuple[LayerRole, ...] | None
    """Role of every layer; None: dense, which goes along with any roles."""
    budget: int
    """Pages K that a sparse layer reads."""
    recency: int
    """Last pages that are always read."""
    forced: bool
    """Choose even where the budget covers every page."""


def left_out(row: Sequence) -> LeftOut | None:
    """Why no kernel does what a row's policy or its layouts ask; None where kernels do."""
    if isinstance(row.policy, DensePolicy):
        return None
    if not isinstance(row.policy, DeltaPolicy) or not chooses_pages_once(row.policy.params):
        return LeftOut.POLICY
    if any(layout.kind is PositionKind.PER_HEAD for layout in row.prompt.layouts):
        return LeftOut.KV_SELECT_HEAD
    return None


def plan_of(row: Sequence) -> RowPlan | None:
    """The plan of a row, or None where it is left out."""
    if isinstance(row.policy, DensePolicy):
        return RowPlan(roles=None, budget=EVERY_PAGE, recency=1, forced=False)
    if not isinstance(row.policy, DeltaPolicy) or left_out(row) is not None:
        return None
    return RowPlan(
        roles=row.row_policy.roles,
        budget=row.policy.params.page_budget,
        recency=row.policy.params.recency_pages,
        forced=row.force_sparse,
    )


def chooses_pages_once(params: SparsityParams) -> bool:
    """One choice of K pages for all heads, made anew at every step."""
    return params.heads is PageHeads.SHARED and params.refresh_every == 1 and params.mass is None

"""Products of a decode step's few rows with a matrix of weights, and what stands around them.

Such a product takes as long as reading the weights, so they are what the kernels are built around:
every weight is read once, in wide loads that keep enough bytes in flight. One row is multiplied by
plain arithmetic, and its norm comes before it in the same launch; more rows go through the tensor
cores, weights as the left side, so that few rows fill its narrow one. Where a matrix has few
outputs, its inputs are divided among programs too; the last of them to end adds the parts up in
their order, so that equal inputs give equal bits. Sums are float32 and rounded once.

Shapes: B rows, I inputs, O outputs.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
import triton
import triton.language as tl
from torch import Tensor

from shared.errors import ConfigError

MOST_ROWS = 64
"""More are read faster by a library's product."""

_MOST_SPLITS = 4
"""More cost more in adding up than they gain (measured on an H200)."""
_FEWEST_ROUNDS = 4
"""Blocks of inputs that a program should at least have."""
_PROGRAMS_A_PROCESSOR = 2
_INTERPRETED_PROCESSORS = 4
"""Where there is no device: few, so that small matrices are divided like large ones."""
_TILE_ROWS = 16
"""Fewest columns of the tensor cores' right side that a program asks for."""


class Ending(StrEnum):
    """What becomes of the sums."""

    STORE = "store"
    """They are the output."""
    ADD = "add"
    """They are added to the output."""
    GATE = "gate"
    """SiLU of the first half of the outputs times the second is the output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductPlan:
    """Sizes that a product is compiled for."""

    outputs: int
    """Outputs of a program."""
    inputs: int
    """Inputs looked at together."""
    warps: int
    """Warps of a program."""
    stages: int
    """Blocks of weights in flight."""

    def __post_init__(self) -> None:
        for name, size in (("outputs", self.outputs), ("inputs", self.inputs)):
            if size < 1 or size & (size - 1):
                raise ConfigError(f"{name} of a product's plan is {size}: give a power of two")


ROW_PLANS = (
    ProductPlan(outputs=8, inputs=512, warps=4, stages=3),
    ProductPlan(outputs=2, inputs=2048, warps=8, stages=1),
)
"""Of one row. On an H200 one of the two was the fastest of 13 for every matrix of an 8B model."""

TILE_PLANS = (
    ProductPlan(outputs=64, inputs=128, warps=4, stages=3),
    ProductPlan(outputs=128, inputs=64, warps=8, stages=5),
)
"""Of more rows, measured in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNorm:
    """Root-mean-square norm of a row before its product."""

    scale_I: Tensor
    """Weights."""
    eps: float
    """Added to the mean square."""


class PartRoom:
    """Where programs that share an output leave their sums; one launch at a time uses it.

    Args:
        device: of the products.
        rows: of them at most.
    """

    def __init__(self, device: torch.device, *, rows: int) -> None:
        self.processors = _INTERPRETED_PROCESSORS
        if device.type == "cuda":
            self.processors = torch.cuda.get_device_properties(device).multi_processor_count
        # Inputs are divided while all programs are at most two a processor: see `_splits`.
        programs = _PROGRAMS_A_PROCESSOR * self.processors
        widest = max(plan.outputs for plan in TILE_PLANS)
        self.sums = torch.empty(programs * widest * rows, device=device)
        """Float32."""
        self.arrived = torch.zeros(programs, dtype=torch.int32, device=device)
        """Programs of a block that have ended; 0 between launches."""


def row_product(
    x_BI: Tensor,
    weight_OI: Tensor,
    *,
    plan: ProductPlan,
    out_BO: Tensor,
    ending: Ending = Ending.STORE,
    norm: RowNorm | None = None,
    bias_O: Tensor | None = None,
) -> None:
    """A product of one row, normed before if asked; all contiguous.

    Args:
        x_BI: the row, B is 1.
        weight_OI: weights; with `Ending.GATE` gate above up, twice as many outputs as `out_BO`.
        plan: sizes.
        out_BO: is overwritten, or added to; its type may be a wider one, of rounded values.
        ending: what becomes of the sums.
        norm: of the row.
        bias_O: added to the sums; not with `Ending.GATE`.
    """
    assert x_BI.shape[0] == 1, "one row"
    assert bias_O is None or ending is not Ending.GATE, "a gated product has no bias"
    outputs, width = out_BO.shape[1], x_BI.shape[1]
    _row_block[(triton.cdiv(outputs, plan.outputs),)](
        x_BI,
        x_BI if norm is None else norm.scale_I,
        weight_OI,
        x_BI if bias_O is None else bias_O,
        out_BO,
        0.0 if norm is None else norm.eps,
        outputs,
        width,
        OUTPUTS=plan.outputs,
        INPUTS=min(plan.inputs, triton.next_power_of_2(width)),
        WIDTH=triton.next_power_of_2(width) if norm is not None else 1,
        NORMED=norm is not None,
        BIASED=bias_O is not None,
        GATED=ending is Ending.GATE,
        ADDED=ending is Ending.ADD,
        STAGES=plan.stages,
        num_warps=plan.warps,
    )


def tile_product(
    x_BI: Tensor,
    weight_OI: Tensor,
    *,
    plan: ProductPlan,
    room: PartRoom,
    out_BO: Tensor,
    ending: Ending = Ending.STORE,
    bias_O: Tensor | None = None,
) -> None:
    """A product of up to `MOST_ROWS` rows; all contiguous.

    Args:
        x_BI: the rows.
        weight_OI: weights, as of `row_product`.
        plan: sizes.
        room: for as many rows.
        out_BO: is overwritten, or added to; its type may be a wider one, of rounded values.
        ending: what becomes of the sums.
        bias_O: added to the sums; not with `Ending.GATE`.
    """
    rows, width = x_BI.shape
    assert rows <= MOST_ROWS, "more are left to the library"
    assert bias_O is None or ending is not Ending.GATE, "a gated product has no bias"
    outputs = out_BO.shape[1]
    blocks = triton.cdiv(outputs, plan.outputs)
    splits = _splits(blocks, width, plan, room.processors)
    if ending is Ending.GATE:
        splits = 1  # two sums an output cost more to leave than idle processors do
    _tile_block[(blocks, splits)](
        x_BI,
        weight_OI,
        x_BI if bias_O is None else bias_O,
        out_BO,
        room.sums,
        room.arrived,
        rows,
        outputs,
        width,
        triton.cdiv(triton.cdiv(width, plan.inputs), splits) * plan.inputs,
        ROWS=max(_TILE_ROWS, triton.next_power_of_2(rows)),
        OUTPUTS=plan.outputs,
        INPUTS=plan.inputs,
        EVEN=width % plan.inputs == 0,
        SPLITS=splits,
        BIASED=bias_O is not None,
        GATED=ending is Ending.GATE,
        ADDED=ending is Ending.ADD,
        STAGES=plan.stages,
        num_warps=plan.warps,
    )


def _splits(blocks: int, width: int, plan: ProductPlan, processors: int) -> int:
    """Parts of the inputs: as many as keep the processors busy, as far as that pays."""
    splits = 1
    while (
        splits < _MOST_SPLITS
        and 2 * blocks * splits <= _PROGRAMS_A_PROCESSOR * processors
        and width >= splits * 2 * plan.inputs * _FEWEST_ROUNDS
    ):
        splits *= 2
    return splits


@triton.jit
def _row_block(
    x_ptr,
    scale_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    eps,
    outputs,
    width,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    NORMED: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    STAGES: tl.constexpr,
):
    o = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    there = o < outputs
    rate = 1.0
    if NORMED:
        # Every program norms the row for itself: it is small, and a launch costs more.
        e = tl.arange(0, WIDTH)
        row = tl.load(x_ptr + e, mask=e < width, other=0.0).to(tl.float32)
        rate = tl.rsqrt(tl.sum(row * row, 0) / width + eps)
    sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    up_sums = tl.zeros([OUTPUTS, INPUTS], tl.float32)
    lines = weight_ptr + o[:, None].to(tl.int64) * width
    half = outputs.to(tl.int64) * width
    for first in tl.range(0, width, INPUTS, num_stages=STAGES):
        i = first + tl.arange(0, INPUTS)
        inside = i < width
        x = tl.load(x_ptr + i, mask=inside, other=0.0)
        if NORMED:
            scale = tl.load(scale_ptr + i, mask=inside, other=0.0).to(tl.float32)
            # Rounded as a norm by itself rounds it.
            x = (x.to(tl.float32) * rate * scale).to(x_ptr.dtype.element_ty)
        x = x.to(tl.float32)[None, :]
        at, known = lines + i[None, :], there[:, None] & inside[None, :]
        sums += tl.load(at, mask=known, other=0.0, eviction_policy="evict_first").to(tl.float32) * x
        if GATED:
            up = tl.load(at + half, mask=known, other=0.0, eviction_policy="evict_first")
            up_sums += up.to(tl.float32) * x
    y = tl.sum(sums, 1)
    if GATED:
        y = y / (1.0 + tl.exp(-y)) * tl.sum(up_sums, 1)
    if BIASED:
        y += tl.load(bias_ptr + o, mask=there, other=0.0).to(tl.float32)
    if ADDED:
        y += tl.load(out_ptr + o, mask=there, other=0.0).to(tl.float32)
    # Rounded as the library rounds, to a wider output too: level logits stay level.
    y = y.to(x_ptr.dtype.element_ty)
    tl.store(out_ptr + o, y.to(out_ptr.dtype.element_ty), mask=there)


@triton.jit
def _tile_block(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    sums_ptr,
    arrived_ptr,
    rows,
    outputs,
    width,
    share,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    EVEN: tl.constexpr,
    SPLITS: tl.constexpr,
    BIASED: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    STAGES: tl.constexpr,
):
    o = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    b = tl.arange(0, ROWS)
    there, seated = o < outputs, b < rows
    sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up_sums = tl.zeros([OUTPUTS, ROWS], tl.float32)
    lines = weight_ptr + o[:, None].to(tl.int64) * width
    half = outputs.to(tl.int64) * width
    begin = tl.program_id(1) * share
    for first in tl.range(begin, tl.minimum(begin + share, width), INPUTS, num_stages=STAGES):
        i = first + tl.arange(0, INPUTS)
        of_weights, of_rows = there[:, None], seated[None, :]
        if not EVEN:
            of_weights = of_weights & (i < width)[None, :]
            of_rows = of_rows & (i < width)[:, None]
        at = lines + i[None, :]
        weights = tl.load(at, mask=of_weights, other=0.0, eviction_policy="evict_first")
        x_at = x_ptr + b[None, :] * width + i[:, None]
        x = tl.load(x_at, mask=of_rows, other=0.0, eviction_policy="evict_last")
        sums = tl.dot(weights, x, sums, input_precision="ieee")
        if GATED:
            up = tl.load(at + half, mask=of_weights, other=0.0, eviction_policy="evict_first")
            up_sums = tl.dot(up, x, up_sums, input_precision="ieee")
    to = b[None, :] * outputs + o[:, None]
    known = there[:, None] & seated[None, :]
    last = True
    if SPLITS > 1:
        last, sums = _joined(sums, sums_ptr + to, rows * outputs, arrived_ptr, known, SPLITS)
    if last:
        y = sums
        if GATED:
            y = y / (1.0 + tl.exp(-y)) * up_sums
        if BIASED:
            y += tl.load(bias_ptr + o, mask=there, other=0.0).to(tl.float32)[:, None]
        if ADDED:
            y += tl.load(out_ptr + to, mask=known, other=0.0).to(tl.float32)
        y = y.to(x_ptr.dtype.element_ty)
        tl.store(out_ptr + to, y.to(out_ptr.dtype.element_ty), mask=known)


@triton.jit
def _joined(sums, at, size, arrived_ptr, known, SPLITS: tl.constexpr):
    """Leaves a program's sums; the last of a block gets those of all, added in their order."""
    block, part = tl.program_id(0), tl.program_id(1)
    tl.store(at + part * size, sums, mask=known)
    # The barrier and the counter's order make the sums of every earlier program visible.
    tl.debug_barrier()
    last = tl.atomic_add(arrived_ptr + block, 1, sem="acq_rel") == SPLITS - 1
    if last:
        tl.debug_barrier()
        sums = tl.zeros_like(sums)
        for each in range(SPLITS):
            sums += tl.load(at + each * size, mask=known, other=0.0, cache_modifier=".cg")
        tl.store(arrived_ptr + block, 0)
    return last, sums

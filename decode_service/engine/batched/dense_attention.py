"""Attention of a step's layers that read every slot and choose nothing: by Triton or FlashInfer.

Layers that choose pages, or read chosen ones, keep to our kernels in either case.

Shapes: B seats, H query heads, G KV heads, D head size, P pages of the pool, S slots of a page.
"""

from collections.abc import Callable, Collection
from typing import Protocol

import torch
from torch import Tensor

from decode_service.engine.batched.step_inputs import StepInputs
from decode_service.engine.batched.step_shape import StepShape
from decode_service.engine.kv_cache import LengthGroup
from decode_service.kernels.flashinfer_paged import FlashInferPaged, PagedHeads, make_workspace
from decode_service.kernels.merge_pieces import AttentionOutput
from decode_service.kernels.paged_attention import paged_attention
from decode_service.kernels.split_plan import SplitPlan
from shared.model.config import ModelConfig


class DenseAttention(Protocol):
    """Such attention of steps of one shape."""

    def plan(self) -> None:
        """The host's part of a step, once its inputs have been sent and before it is enqueued."""

    def begin(self) -> None:
        """Enqueues what layers have in common, at the head of a step; may be captured."""

    def attend(
        self,
        group: LengthGroup,
        q_BHD: Tensor,
        kv_PSGD: tuple[Tensor, Tensor],
        output: AttentionOutput,
    ) -> None:
        """Enqueues one layer; may be captured.

        Args:
            group: of the layer.
            q_BHD: rotated queries.
            kv_PSGD: rotated keys and values of the layer.
            output: its `out_BHD` is overwritten.
        """


DenseMaker = Callable[[StepInputs, StepShape, Collection[LengthGroup], SplitPlan], DenseAttention]
"""Makes it for the seats, a shape, the groups that have such layers, and how ours is cut."""


class TritonDense:
    """Our paged attention, which plans on the device.

    Args:
        inputs: the seats.
        shape: sizes.
        plan: how rows are cut into pieces.
    """

    def __init__(self, inputs: StepInputs, shape: StepShape, plan: SplitPlan) -> None:
        self._inputs = inputs
        self._rows = shape.rows
        self._plan = plan

    def plan(self) -> None:
        """Nothing to do."""

    def begin(self) -> None:
        """Nothing to do."""

    def attend(
        self,
        group: LengthGroup,
        q_BHD: Tensor,
        kv_PSGD: tuple[Tensor, Tensor],
        output: AttentionOutput,
    ) -> None:
        """See `DenseAttention.attend`."""
        tables = self._inputs.tables(group, self._rows)
        paged_attention(q_BHD, kv_PSGD, tables, plan=self._plan, output=output)


class FlashInferDense:
    """FlashInfer's kernel, which the host plans before every step.

    Args:
        inputs: the seats.
        shape: sizes.
        groups: whose layers it serves.
        heads: of the model.
        workspace: memory that steps share.
    """

    def __init__(
        self,
        inputs: StepInputs,
        shape: StepShape,
        groups: Collection[LengthGroup],
        *,
        heads: PagedHeads,
        workspace: Tensor,
    ) -> None:
        self._inputs = inputs
        self._rows = shape.rows
        self._by_group = {
            group: FlashInferPaged(heads, rows=shape.rows, width=shape.pages, workspace=workspace)
            for group in groups
        }

    def plan(self) -> None:
        """See `DenseAttention.plan`."""
        for group, paged in self._by_group.items():
            paged.plan(self._inputs.host_lengths(group, self._rows))

    def begin(self) -> None:
        """Lists the rows' pages as the library reads them."""
        for group, paged in self._by_group.items():
            paged.gather(self._inputs.tables(group, self._rows))

    def attend(
        self,
        group: LengthGroup,
        q_BHD: Tensor,
        kv_PSGD: tuple[Tensor, Tensor],
        output: AttentionOutput,
    ) -> None:
        """See `DenseAttention.attend`."""
        self._by_group[group].attend(q_BHD, kv_PSGD, out_BHD=output.out_BHD)


def by_triton(
    inputs: StepInputs, shape: StepShape, _groups: Collection[LengthGroup], plan: SplitPlan
) -> DenseAttention:
    """A `DenseMaker` of our own kernel."""
    return TritonDense(inputs, shape, plan)


def flashinfer_maker(
    config: ModelConfig, dtype: torch.dtype, *, max_rows: int, device: torch.device
) -> DenseMaker:
    """A `DenseMaker` of FlashInfer for a model.

    Args:
        config: of the model.
        dtype: of its KV.
        max_rows: rows of one step at most.
        device: where it is.
    """
    heads = PagedHeads(
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )
    workspace = make_workspace(heads, max_rows=max_rows, device=device)

    def make(
        inputs: StepInputs, shape: StepShape, groups: Collection[LengthGroup], _plan: SplitPlan
    ) -> DenseAttention:
        return FlashInferDense(inputs, shape, groups, heads=heads, workspace=workspace)

    return make

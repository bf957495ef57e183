"""One step of a batch on the device, from token ids to the best token of every row.

Every size follows from the step's shape and nothing waits for a result, so that the whole of it can
be captured in a graph: selection too. Called without one it allocates what it needs.

Shapes: B seats, E hidden width, H query heads, G KV heads, D head size, I MLP width, V vocabulary,
U pages of a row, X positions, K pages of a choice.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

from decode_service.engine.batched.dense_attention import DenseMaker, by_triton
from decode_service.engine.batched.layer_tasks import LayerTask
from decode_service.engine.batched.products import StepProducts
from decode_service.engine.batched.step_inputs import StepInputs
from decode_service.engine.batched.step_shape import StepShape
from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.kernels.merge_pieces import AttentionOutput
from decode_service.kernels.page_scores import Board, project_scores, score_pages
from decode_service.kernels.paged_attention import LogitDump, PageTables, paged_attention
from decode_service.kernels.rotate_store import Rotation, rotate_and_store
from decode_service.kernels.select_pages import ChosenPages, select_pages
from shared.model.layers import LayerWeights
from shared.model.sampler import best_tokens
from shared.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepOutput:
    """What a step leaves on the device, until the next one of its shape."""

    logits_BV: Tensor
    """Float32."""
    best_2B: Tensor
    """Highest logit and its token of every seat, as `best_tokens` gives them."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Selection:
    """Scores and choices of one step."""

    dump: LogitDump
    scores_BU: Tensor
    board_BX: Tensor
    chosen: dict[int, ChosenPages]
    """By slot class; a Δ-layer replaces those that it chooses for."""


class DeviceStep:
    """A step of one shape.

    Args:
        model: the decoder.
        cache: where the rows' pages are.
        inputs: the seats.
        shape: sizes.
        dense: makes the attention of layers that read everything and choose nothing.
        products: computes the products with the model's weights, for this number of rows.
    """

    def __init__(
        self,
        model: Transformer,
        cache: PagedKvCache,
        inputs: StepInputs,
        shape: StepShape,
        *,
        dense: DenseMaker = by_triton,
        products: StepProducts,
    ) -> None:
        self._model = model
        self._cache = cache
        self._inputs = inputs
        self._shape = shape
        self._products = products
        self._tasks = inputs.layers.tasks(choosing=shape.choice > 0)
        self._projects = any(
            served != task.slot_class for task in self._tasks for served in task.chooses_for
        )
        config = model.config
        self._plans = {
            reads: shape.plan(
                kv_heads=config.num_kv_heads, head_dim=config.head_dim, reads_choice=reads
            )
            for reads in ({False, True} if shape.choice else {False})
        }
        groups = {task.group for task in self._tasks if _is_dense(task)}
        self._dense = dense(inputs, shape, groups, self._plans[False])

    def run(self) -> StepOutput:
        """Plans and enqueues the step; the inputs must have been sent in the same stream."""
        self.plan()
        return self.enqueue()

    def plan(self) -> None:
        """The host's part of a step: before the other part, and never captured."""
        self._dense.plan()

    @torch.inference_mode()
    def enqueue(self) -> StepOutput:
        """The device's part of a step, which waits for nothing and can be captured."""
        model, inputs, rows = self._model, self._inputs, self._shape.rows
        self._dense.begin()
        x_BE = model.embed(inputs.ids(rows))
        table = model.rope(inputs.positions(rows), context_tokens=self._shape.tokens)
        rotation = Rotation(cos_BD=table.cos_TD, sin_BD=table.sin_TD)
        q_size = (rows, model.config.num_heads, model.config.head_dim)
        q_BHD = torch.empty(q_size, dtype=model.dtype, device=model.device)
        outputs = {reads: AttentionOutput.empty(q_BHD, plan) for reads, plan in self._plans.items()}
        selection = self._begin_selection(q_BHD) if self._shape.choice else None
        for number, task in enumerate(self._tasks):
            weights = model.layers[number].weights
            self._project(number, task, x_BE, rotation, q_BHD)
            output = outputs[task.reads_choice]
            self._attend(number, task, q_BHD, output, selection)
            self._finish(weights, x_BE, output.out_BHD)
        logits_BV = self._products.logits(x_BE)
        return StepOutput(logits_BV=logits_BV, best_2B=best_tokens(logits_BV))

    def _project(
        self, number: int, task: LayerTask, x_BE: Tensor, rotation: Rotation, q_BHD: Tensor
    ) -> None:
        """Queries of a layer; its keys and values go to their pages."""
        weights, config = self._model.layers[number].weights, self._model.config
        flat = self._products.project(x_BE, weights)
        heads_BND = flat.view(x_BE.shape[0], -1, config.head_dim)
        if weights.q_norm_D is not None and weights.k_norm_D is not None:
            num_q, num_turned = config.num_heads, config.num_heads + config.num_kv_heads
            parts = (
                self._head_norm(heads_BND[:, :num_q], weights.q_norm_D),
                self._head_norm(heads_BND[:, num_q:num_turned], weights.k_norm_D),
                heads_BND[:, num_turned:],
            )
            heads_BND = torch.cat(parts, dim=1)
        rotate_and_store(
            heads_BND,
            rotation,
            self._cache.pool_of(number).flat(number),
            self._inputs.write_slots(task.group, self._shape.rows),
            q_BHD=q_BHD,
        )

    def _attend(
        self,
        number: int,
        task: LayerTask,
        q_BHD: Tensor,
        output: AttentionOutput,
        selection: _Selection | None,
    ) -> None:
        """Attention of a layer, and the choices that follow from it."""
        kv_PSGD = self._cache.pool_of(number).paged(number)
        if _is_dense(task):
            self._dense.attend(task.group, q_BHD, kv_PSGD, output)
            return
        tables = self._inputs.tables(task.group, self._shape.rows)
        dump = None
        if selection is not None:
            if task.reads_choice:
                chosen = selection.chosen[task.slot_class]
                tables = PageTables(pages_BM=chosen.pages_RK, lengths_B=chosen.visible_R)
            dump = selection.dump if task.chooses_for else None
        paged_attention(
            q_BHD,
            kv_PSGD,
            tables,
            plan=self._plans[task.reads_choice],
            output=output,
            dump=dump,
        )
        if selection is not None and task.chooses_for:
            self._choose(task, selection, output.lse_BH)

    def _begin_selection(self, q_BHD: Tensor) -> _Selection:
        shape, device = self._shape, q_BHD.device
        plan = self._plans[False]
        board_size = (shape.rows, shape.tokens if self._projects else 1)
        # Positions that no Δ-layer of the step has held score 0.
        return _Selection(
            dump=LogitDump.empty(q_BHD, plan, tokens=shape.tokens),
            scores_BU=torch.empty((shape.rows, shape.pages), device=device),
            board_BX=torch.zeros(board_size, device=device),
            chosen={},
        )

    def _choose(self, task: LayerTask, selection: _Selection, lse_BH: Tensor) -> None:
        """Scores the pages of a Δ-layer and chooses for the classes that it serves."""
        rows, own = self._shape.rows, task.slot_class
        lengths_B = self._inputs.tables(task.group, rows).lengths_B
        score_pages(
            selection.dump,
            lse_BH,
            lengths_B,
            plan=self._plans[False],
            scores_BU=selection.scores_BU,
            board=self._board(own, selection) if self._projects else None,
        )
        # The scores at hand are those of the layer's own class, so that one is served first.
        for served in sorted(task.chooses_for, key=lambda each: each != own):
            group = self._group_of(served)
            tables = self._inputs.tables(group, rows)
            if served != own:
                board = self._board(served, selection)
                project_scores(board, tables.lengths_B, scores_BU=selection.scores_BU)
            if served not in selection.chosen:
                selection.chosen[served] = self._room(lse_BH.device)
            select_pages(
                selection.scores_BU,
                tables.pages_BM,
                tables.lengths_B,
                budgets=self._inputs.choice_budgets(rows),
                chosen=selection.chosen[served],
            )

    def _group_of(self, slot_class: int) -> LengthGroup:
        layers = self._inputs.layers
        return layers.group_of(layers.first_of(slot_class))

    def _board(self, slot_class: int, selection: _Selection) -> Board:
        maps = self._inputs.maps(slot_class, self._shape.rows)
        return Board(scores_BX=selection.board_BX, maps=maps)

    def _room(self, device: torch.device) -> ChosenPages:
        size = (self._shape.rows, self._shape.choice)
        return ChosenPages(
            pages_RK=torch.empty(size, dtype=torch.int32, device=device),
            visible_R=torch.empty(size[:1], dtype=torch.int32, device=device),
        )

    def _finish(self, weights: LayerWeights, x_BE: Tensor, out_BHD: Tensor) -> None:
        """Adds attention output and MLP to the residual, in place."""
        products = self._products
        products.add_attention(x_BE, out_BHD.flatten(1), weights)
        products.add_hidden(x_BE, products.gated(x_BE, weights), weights)

    def _head_norm(self, heads_BND: Tensor, scale_D: Tensor) -> Tensor:
        return F.rms_norm(heads_BND, scale_D.shape, scale_D, self._model.config.rms_norm_eps)


def _is_dense(task: LayerTask) -> bool:
    """Whether a layer reads everything and chooses nothing."""
    return not task.reads_choice and not task.chooses_for

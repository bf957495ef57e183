"""RaaS: pages of the answer stay as long as some step keeps finding them important.

Paper: https://arxiv.org/abs/2502.11147. Every page of the answer carries the last step at which its
estimated attention was high; once a layer holds more than K pages, the page of the answer with the
oldest stamp is hidden in that layer for good. Pages of the prompt are never hidden and count inside
K. Every layer does so for itself; none is dense.

The estimate is a softmax over the pages still read, of the bounds of their keys (`page_bounds.py`),
for every query head; a page has the largest of its heads. High is the upper half of the pages, for
a threshold would depend on how far bounds lie above logits. The last page, which is being written,
always counts as high.

A prompt may be longer than K on its own. It is kept all the same, and the answer has L pages: such
a row reads more than K pages a layer, and its attended tokens say so. Deviation: what is hidden is
not freed, since the layers of a row share a page table.

Shapes: H query heads, D head size, U pages still read, V pages of the answer still read.
"""

from dataclasses import dataclass, field

import torch

from decode_service.sparsity.base import (
    LayerKv,
    LayerRole,
    RowFacts,
    Selection,
    UnobservedStep,
    page_selection,
)
from decode_service.sparsity.page_bounds import PageBounds, logit_bounds
from decode_service.sparsity.page_scores import best_units
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.types.methods import SparsityParams


class RaasPolicy:
    """All of the prompt and the pages of the answer with the newest stamps, K pages in all.

    Args:
        params: page budget K; recency pages L, the least that an answer is left with.
        num_layers: decoder layers of the model.
    """

    name = "raas"

    def __init__(self, params: SparsityParams, *, num_layers: int) -> None:
        self._params = params
        self._roles = (LayerRole.SPARSE,) * num_layers

    def begin(self, facts: RowFacts, *, force: bool = False) -> "RaasRow":
        """Takes up a row."""
        assert facts.num_layers == len(self._roles), "the policy was made for this model"
        return RaasRow(
            roles=self._roles,
            force=force,
            layers=tuple(self._layer(facts, layer) for layer in range(facts.num_layers)),
        )

    def _layer(self, facts: RowFacts, layer: int) -> "RaasLayer":
        # A page that the prompt ends in takes the first tokens of the answer and stays with it.
        prompt_pages = pages_for(facts.layout_of(layer).slots)
        room = max(self._params.page_budget - prompt_pages, self._params.recency_pages)
        return RaasLayer(prompt_pages=prompt_pages, room=room, num_pages=prompt_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamped:
    """Pages of the answer that a layer still reads."""

    pages_V: torch.Tensor
    """Logical pages, int64, ascending."""
    stamps_V: torch.Tensor
    """Step at which each was last important, int64."""


@dataclass(slots=True, kw_only=True)
class RaasLayer:
    """What a layer remembers."""

    prompt_pages: int
    """Pages that hold a token of the prompt, in the layer's own layout."""
    room: int
    """Pages of the answer that may be read."""
    num_pages: int
    """Pages that have been taken up, hidden ones included."""
    stamped: Stamped | None = None
    """None before the first step."""
    bounds: PageBounds = field(default_factory=PageBounds)
    """Bounds of the keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaasRow:
    """One row."""

    roles: tuple[LayerRole, ...]
    """Every layer is sparse."""
    force: bool
    """Select also where nothing is hidden."""
    layers: tuple[RaasLayer, ...]
    """Memory of every layer."""

    def step(self, *, generated: int) -> "RaasStep":
        """Begins a step; the number of generated tokens is its stamp."""
        return RaasStep(self, now=generated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What a layer will remember of a step that succeeds."""

    stamped: Stamped
    num_pages: int
    full_pages: int
    """Pages whose bounds are final; 0 where no bounds were needed."""


class RaasStep(UnobservedStep):
    """One step.

    Args:
        row: what it reads from and, on commit, writes to.
        now: the step's stamp.
    """

    def __init__(self, row: RaasRow, *, now: int) -> None:
        self._row = row
        self._now = now
        self._outcomes: dict[int, _Outcome] = {}

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """The prompt's pages and those of the answer that are left once the stamps are new."""
        memory, num_pages = self._row.layers[layer], pages_for(kv.length)
        stamped = self._taken_up(memory, num_pages=num_pages, device=q_HD.device)
        estimating = stamped.pages_V.shape[0] > 1
        if estimating:
            high_V = self._high(memory, stamped, q_HD, kv)
            stamps_V = torch.where(high_V, self._now, stamped.stamps_V)
            stamped = Stamped(pages_V=stamped.pages_V, stamps_V=stamps_V)
        stamped = _newest(stamped, room=memory.room)
        self._outcomes[layer] = _Outcome(
            stamped=stamped,
            num_pages=num_pages,
            full_pages=kv.length // PAGE_SIZE if estimating else 0,
        )
        pages_U = _read_pages(memory, stamped)
        if pages_U.shape[0] == num_pages and not self._row.force:
            return None
        return page_selection(pages_U[None], kv_length=kv.length)

    def commit(self) -> None:
        """Stamps and hidings become the layers' memory."""
        for layer, outcome in self._outcomes.items():
            memory = self._row.layers[layer]
            memory.stamped, memory.num_pages = outcome.stamped, outcome.num_pages
            memory.bounds.keep(outcome.full_pages)

    def _taken_up(self, memory: RaasLayer, *, num_pages: int, device: torch.device) -> Stamped:
        """The pages of the answer still read, those that this step begins included."""
        pages_V = torch.arange(memory.num_pages, num_pages, device=device)
        stamps_V = torch.full_like(pages_V, self._now)
        if memory.stamped is not None:
            pages_V = torch.cat((memory.stamped.pages_V, pages_V))
            stamps_V = torch.cat((memory.stamped.stamps_V, stamps_V))
        stamps_V[-1:] = self._now
        return Stamped(pages_V=pages_V, stamps_V=stamps_V)

    def _high(
        self, memory: RaasLayer, stamped: Stamped, q_HD: torch.Tensor, kv: LayerKv
    ) -> torch.Tensor:
        """Which pages of the answer are in the upper half of all that are still read, bool [V]."""
        bounds_GPE = memory.bounds.cover(kv, num_pages=pages_for(kv.length))
        logits_GRU = logit_bounds(q_HD, bounds_GPE)[:, :, _read_pages(memory, stamped)]
        # The logarithm ranks as the probability does and cannot vanish.
        estimates_U = torch.log_softmax(logits_GRU, dim=-1).amax(dim=(0, 1))
        num_read = estimates_U.shape[0]
        high_U = torch.zeros(num_read, dtype=torch.bool, device=q_HD.device)
        high_U[best_units(estimates_U[None], count=(num_read + 1) // 2)[0]] = True
        high_V = high_U[memory.prompt_pages :]
        high_V[-1] = True
        return high_V


def _read_pages(memory: RaasLayer, stamped: Stamped) -> torch.Tensor:
    """Pages of the prompt and of the answer, [U]."""
    prompt = torch.arange(memory.prompt_pages, device=stamped.pages_V.device)
    return torch.cat((prompt, stamped.pages_V))


def _newest(stamped: Stamped, *, room: int) -> Stamped:
    """The pages with the `room` newest stamps; of equally old ones the earlier pages go first."""
    surplus = stamped.pages_V.shape[0] - room
    if surplus <= 0:
        return stamped
    oldest_first = torch.argsort(stamped.stamps_V, stable=True)
    stays_V = oldest_first[surplus:].sort().values
    return Stamped(pages_V=stamped.pages_V[stays_V], stamps_V=stamped.stamps_V[stays_V])

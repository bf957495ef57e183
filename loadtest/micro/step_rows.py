"""Rows of a benchmark of decode steps: random KV on pages in random order, arms side by side.

The arms of a case read the same pages; a pruned arm reads fewer of them in the pruned layers.

Shapes: N prompt slots.
"""

import torch

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache, SequencePages, page_table
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from loadtest.micro.step_shapes import StepCase
from shared.kv.geometry import pages_for
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PositionKind
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams, StopConditions

GROWTH = 1024
"""Slots that a row may add: a benchmark that runs longer begins again."""

ARMS = ("dense", "delta", "pruned", "pair")
"""Neither method, DELTA, pruning, both."""

CHOOSING = frozenset({"delta", "pair"})
"""Arms whose steps choose pages."""


class CaseRows:
    """The memory of a case, and the rows of its arms.

    Args:
        model: the decoder.
        case: sizes.
    """

    def __init__(self, model: Transformer, case: StepCase) -> None:
        self._model = model
        self._case = case
        self._generator = torch.Generator().manual_seed(3)
        self.pages_of_a_row = pages_for(case.context + GROWTH)
        """Pages of an unpruned row, its growth included; its pages lie together in `page_order`."""
        count = case.batch * self.pages_of_a_row
        self.cache = PagedKvCache(
            model.geometry(),
            whole_layers=case.whole_layers,
            pages_front=count,
            pages_rest=count,
            device=model.device,
        )
        noise = torch.Generator(model.device).manual_seed(4)
        for pool in self.cache.pools.values():
            for layer in pool.memory:
                layer.normal_(generator=noise)
        self.page_order = {
            group: torch.randperm(count, generator=self._generator) for group in LengthGroup
        }
        """Physical pages, row after row."""
        first = torch.randint(2, model.config.vocab_size, (case.batch,), generator=self._generator)
        self._first_tokens = first.tolist()
        kept = int((case.keep_rate or 1.0) * case.context)
        drawn = torch.randperm(case.context, generator=self._generator)[:kept]
        self._positions_1N = drawn.sort().values[None]

    def arms(self) -> tuple[str, ...]:
        """Names of the arms that this case has."""
        return ARMS if self._case.keep_rate is not None else ARMS[:2]

    def rows(self, arm: str) -> list[Sequence]:
        """Fresh rows of an arm."""
        return [self._row(arm, number) for number in range(self._case.batch)]

    def slots(self, arm: str, group: LengthGroup) -> int:
        """Prompt slots of an arm's rows."""
        pruned = arm in {"pruned", "pair"} and group is LengthGroup.REST
        return self._positions_1N.shape[1] if pruned else self._case.context

    def _row(self, arm: str, number: int) -> Sequence:
        case, config = self._case, self._model.config
        identity = KvLayout(kind=PositionKind.IDENTITY, slots=case.context, positions_RN=None)
        kept = KvLayout(
            kind=PositionKind.SHARED,
            slots=self._positions_1N.shape[1],
            positions_RN=self._positions_1N.to(self._model.device),
        )
        pruned = arm in {"pruned", "pair"}
        rest = config.num_layers - case.whole_layers
        sparsity = SparsityParams(
            full_layers=case.full_layers,
            page_budget=case.budget,
            recency_pages=case.recency,
        )
        chooses = arm in CHOOSING
        return Sequence(
            key=HandoffKey(f"{arm}-{number}"),
            prompt=PromptKv(
                pages=self._held(arm, number),
                layouts=(identity, kept) if pruned else (identity,),
                layer_layouts=(0,) * case.whole_layers + (int(pruned),) * rest,
                whole_layers=case.whole_layers,
                prompt_tokens=case.context,
            ),
            policy=policy_for(sparsity if chooses else None, num_layers=config.num_layers),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=GROWTH),
            generated=[self._first_tokens[number]],
        )

    def _held(self, arm: str, number: int) -> SequencePages:
        first, held = number * self.pages_of_a_row, {}
        for group, order in self.page_order.items():
            count = pages_for(self.slots(arm, group) + GROWTH)
            pages = order[first : first + count].tolist()
            held[group] = page_table(pages, self._model.device)
        return SequencePages(front=held[LengthGroup.FRONT], rest=held[LengthGroup.REST])

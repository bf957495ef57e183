"""Equal rows on two caches, one for the PyTorch path and one for the kernels, stepped together.

Triton's interpreter runs the kernels; on a GPU `loadtest.micro.decode_step` compares the two.
"""

import random
from dataclasses import dataclass

import torch

from decode_service.engine.batched.dense_attention import DenseMaker, by_triton
from decode_service.engine.batched.product_choice import ProductChoice
from decode_service.engine.batched.runner import BatchRunner, StepWays
from decode_service.engine.kv_cache import GroupPages, PagedKvCache, SequencePages, page_table
from decode_service.engine.rows_to_come import RowsToCome
from decode_service.engine.sequence import Sequence
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams
from tests.reference.delta_slow import SlowPrompt
from tests.support.decode_rows import WHOLE, make_prompt, make_runner, place

MAX_TOKENS = 320
PLAIN = SamplingParams(temperature=0.0)
MAX_BATCH = 4


class ShuffledCache(PagedKvCache):
    """Gives rows their pages in random order; free pages are NaN."""

    def __init__(self, model: Transformer, *, seed: int, pages: int = 96) -> None:
        super().__init__(
            model.geometry(),
            whole_layers=WHOLE,
            pages_front=pages,
            pages_rest=pages,
            device=model.device,
            poison=True,
        )
        self._random = random.Random(seed)

    def reserve(self, *, front_tokens: int, rest_tokens: int) -> SequencePages | None:
        """See `PagedKvCache.reserve`."""
        held = super().reserve(front_tokens=front_tokens, rest_tokens=rest_tokens)
        assert held is not None, "tests fit their cache"
        return SequencePages(front=self._shuffled(held.front), rest=self._shuffled(held.rest))

    def _shuffled(self, held: GroupPages) -> GroupPages:
        pages = list(held.pages)
        self._random.shuffle(pages)
        return page_table(pages, self.device)


@dataclass(frozen=True, kw_only=True)
class RowKind:
    """A row to be made on both caches."""

    sparsity: SparsityParams | None
    tokens: int
    kept: int = 0
    mode: str = "identity"
    force: bool = False
    sampling: SamplingParams = PLAIN
    max_tokens: int = 40


class TwoPaths:
    """The same rows on both paths."""

    def __init__(
        self,
        model: Transformer,
        *,
        dense: DenseMaker = by_triton,
        products: ProductChoice | None = None,
    ) -> None:
        self.model = model
        self.rows_to_come = RowsToCome()
        self._wanted_cache = ShuffledCache(model, seed=1)
        self.cache = ShuffledCache(model, seed=2)
        self.by_row = make_runner(model, self._wanted_cache)
        self.runner = BatchRunner(
            model,
            self.cache,
            by_row=make_runner(model, self.cache),
            max_batch=MAX_BATCH,
            max_tokens=MAX_TOKENS,
            ways=StepWays(dense=dense, products=products, rows_to_come=self.rows_to_come),
        )
        self._twins: dict[Sequence, Sequence] = {}

    def add(self, kind: RowKind) -> Sequence:
        """A row for the kernels; its twin is stepped along by `step`."""
        seed = len(self._twins)
        prompt, _ = make_prompt(
            self.model, mode=kind.mode, tokens=kind.tokens, kept=kind.kept, seed=seed
        )
        row, twin = (self._place(cache, prompt, kind) for cache in (self.cache, self._wanted_cache))
        self._twins[row] = twin
        return row

    def twin(self, row: Sequence) -> Sequence:
        """The same row on the other cache."""
        return self._twins[row]

    def step(self, rows: list[Sequence]) -> None:
        """One step on both paths; logits, counts and tokens must agree."""
        twins = [self._twins[row] for row in rows]
        wanted = self.by_row.forward(twins)
        got = self.runner.compute(rows)
        logits_BV = got.output.logits_BV[: len(rows)]
        torch.testing.assert_close(logits_BV, wanted.logits_BV, atol=1e-4, rtol=0)
        assert got.attended.tolist() == wanted.attended
        tokens = wanted.logits_BV.argmax(dim=-1).tolist()
        assert got.output.best_2B[1, : len(rows)].tolist() == logits_BV.argmax(dim=-1).tolist()
        wanted.accept(tokens)
        got.accept(tokens)
        for row, twin in zip(rows, twins, strict=True):
            assert counts(row) == counts(twin)

    def release(self, row: Sequence) -> None:
        """The row has ended: its pages become NaN."""
        self.cache.release(row.prompt.pages)

    def _place(self, cache: PagedKvCache, prompt: SlowPrompt, kind: RowKind) -> Sequence:
        return place(
            self.model,
            cache,
            prompt,
            first_token=9,
            sparsity=kind.sparsity,
            max_tokens=kind.max_tokens,
            force_sparse=kind.force,
            sampling=kind.sampling,
        )


def counts(row: Sequence) -> tuple[int, ...]:
    """What a row counts."""
    return (row.steps, row.draws, row.attended, row.dense, row.refreshes, *row.generated)

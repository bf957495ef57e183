"""The paged runner under the rivals that remember against slow answers, in every layout."""

from dataclasses import dataclass, field

import pytest
import torch

from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams
from tests.reference import rival_twins
from tests.reference.rivals_slow import SlowRival
from tests.support.decode_rows import (
    LAYOUT_MODES,
    advance,
    make_cache,
    make_prompt,
    make_runner,
    place,
    scatter_pages,
)

TOKENS, KEPT, BUDGET, RECENCY, RECENT_SLOTS = 150, 75, 4, 1, 19


@dataclass
class SlowRemembering(SlowRival):
    """One answer under Quest, RaaS or H2O."""

    raas: dict[int, rival_twins.Raas] = field(default_factory=dict)
    h2o: dict[int, rival_twins.H2o] = field(default_factory=dict)

    def _slots_by_head(self, layer: int, q: torch.Tensor) -> list[list[int]]:
        keys = self.keys[layer]
        if self.method == "h2o":
            twin = self.h2o.setdefault(
                layer, rival_twins.H2o(budget=16 * BUDGET, recent=RECENT_SLOTS)
            )
            rows = twin.step(q, keys)
        else:
            rows = [self._slots(pages, total=len(keys)) for pages in self._pages(layer, q)]
        return [rows[head * len(rows) // len(q)] for head in range(len(q))]

    def _pages(self, layer: int, q: torch.Tensor) -> list[list[int]]:
        keys = self.keys[layer]
        if self.method == "raas":
            prompt = self.prompt.keys[layer].shape[0]
            twin = self.raas.setdefault(
                layer,
                rival_twins.Raas(prompt_slots=prompt, budget=BUDGET, recency=RECENCY),
            )
            return [twin.step(q, keys, now=self.fed)]
        num_pages = -(-len(keys) // 16)
        if layer < 2 or num_pages <= BUDGET:
            return [list(range(num_pages))]
        return rival_twins.quest(q, keys, budget=BUDGET, shared=self.method == "quest_shared")

    @staticmethod
    def _slots(pages: list[int], *, total: int) -> list[int]:
        return [s for page in pages for s in range(16 * page, min(16 * page + 16, total))]


@pytest.mark.parametrize("mode", LAYOUT_MODES)
@pytest.mark.parametrize(
    ("method", "steps"), [("quest", 14), ("quest_shared", 14), ("raas", 44), ("h2o", 14)]
)
def test_the_runner_answers_as_the_slow_twin_and_reads_as_many_slots(
    tiny_model: Transformer, method: str, steps: int, mode: str
) -> None:
    prompt, _ = make_prompt(tiny_model, mode=mode, tokens=TOKENS, kept=KEPT, seed=2)
    params = SparsityParams(
        full_layers=(0,),
        page_budget=BUDGET,
        recency_pages=RECENCY,
        policy=method,
        recent_share=0.3,
    )
    cache = make_cache(tiny_model)
    for pool in cache.pools.values():
        scatter_pages(pool.pages)
    runner = make_runner(tiny_model, cache)
    row = place(tiny_model, cache, prompt, first_token=9, sparsity=params)
    slow = SlowRemembering(tiny_model, prompt, full_layers=(), method=method)
    with torch.inference_mode():
        for _ in range(steps):
            wanted_V = slow.step(row.generated[-1])
            before = row.attended
            runner.forward([row])  # a step that failed and is made again
            got_V = advance(runner, [row])[0]
            torch.testing.assert_close(got_V, wanted_V, atol=1e-4, rtol=0)
            assert row.attended - before == slow.attended[-1]
    whole = sum(len(slow.keys[layer]) for layer in range(tiny_model.config.num_layers))
    assert slow.attended[-1] < whole

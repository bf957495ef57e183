"""Prefill runner to decode runner, no servers between them."""

import itertools
import random
from pathlib import Path

import pytest
import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.engine.solo import GREEDY, PromptTensors, solo_row
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.model.transformer import Transformer
from shared.model.weights import load_folder
from shared.types.handoff import HandoffKey
from shared.types.methods import Aggregation, KvSelect, PruningParams, SparsityParams
from shared.types.sampling import StopConditions
from tests.reference.delta_slow import SlowDelta, SlowPrompt
from tests.support.decode_rows import advance
from tests.support.pair import assert_same_tokens, first_token, hand_over, prefill, top2_gap

DELTA = SparsityParams(full_layers=(0, 1, 3), page_budget=4, recency_pages=1)


def pruning(**changes: object) -> PruningParams:
    """Parameters for the six layers of the tiny model."""
    base = {
        "pruning_layer": 3,
        "keep_rate": 0.5,
        "aggregation_window": 2,
        "deferred_layers": 2,
        "observation_window": 8,
    }
    return PruningParams(**{**base, **changes})  # type: ignore[arg-type]


def tokens_of(count: int, *, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(2, 512) for _ in range(count)]


def slow_prompt(model: Transformer, handed: PromptTensors) -> SlowPrompt:
    """The same KV for the slow twin."""
    positions = []
    for layout in handed.layer_layouts:
        map_RN = handed.positions.get(layout)
        rows = [list(range(handed.prompt_tokens))] if map_RN is None else map_RN.tolist()
        positions.append(rows if len(rows) > 1 else rows * model.config.num_kv_heads)
    return SlowPrompt(
        prompt_tokens=handed.prompt_tokens,
        keys=[keys for keys, _ in handed.keys_values],
        values=[values for _, values in handed.keys_values],
        positions=positions,
    )


@pytest.mark.parametrize("select", KvSelect)
@pytest.mark.parametrize("lp", [1, 3, 4])
def test_pruned_prompts_decode_as_the_slow_twin_does(
    tiny_model: Transformer, select: KvSelect, lp: int
) -> None:
    """Pruning before the deferred layers end (lp 1), at and after the last Δ-layer."""
    params = pruning(kv_select=select, pruning_layer=lp, aggregation=Aggregation.RANK_MAX)
    captured = prefill(tiny_model, tokens_of(200, seed=lp), params)
    handed = hand_over(captured)
    cache, row = solo_row(
        tiny_model,
        prompt=handed,
        first_token=first_token(captured),
        sparsity=DELTA,
        max_tokens=24,
    )
    runner = DecodeRunner(tiny_model, cache, attention=TorchDecodeAttention())
    slow = SlowDelta(tiny_model, slow_prompt(tiny_model, handed), (0, 1, 3), budget=4, recency=1)
    assert row.position == 200
    with torch.inference_mode():
        for _ in range(23):
            wanted_V = slow.step(row.generated[-1])
            got_V = advance(runner, [row])[0]
            torch.testing.assert_close(got_V, wanted_V, atol=1e-4, rtol=0)


def shared_cache_row(
    model: Transformer, cache: PagedKvCache, handed: PromptTensors, *, first: int, number: int
) -> Sequence:
    """A row in a cache that other rows use too, as the decode service builds it."""
    front, rest = (handed.keys_values[layer][0].shape[0] + 16 for layer in (0, -1))
    pages = cache.reserve(front_tokens=front, rest_tokens=rest)
    assert pages is not None
    for layer, (keys, values) in enumerate(handed.keys_values):
        cache.write_prompt(pages, layer=layer, keys_NGD=keys, values_NGD=values)
    layouts = tuple(
        KvLayout.from_spec(
            spec,
            handed.positions.get(index),
            prompt_tokens=handed.prompt_tokens,
            num_kv_heads=model.config.num_kv_heads,
        )
        for index, spec in enumerate(handed.layouts)
    )
    prompt = PromptKv(
        pages=pages,
        layouts=layouts,
        layer_layouts=handed.layer_layouts,
        whole_layers=cache.whole_layers,
        prompt_tokens=handed.prompt_tokens,
    )
    return Sequence(
        key=HandoffKey(f"request-{number}"),
        prompt=prompt,
        policy=policy_for(DELTA, num_layers=model.config.num_layers),
        num_heads=model.config.num_heads,
        num_kv_heads=model.config.num_kv_heads,
        sampling=GREEDY,
        stop=StopConditions(max_tokens=16),
        generated=[first],
    )


def test_eight_requests_together_give_the_tokens_they_give_alone(tiny_model: Transformer) -> None:
    """Pruned in every way, kept whole, long and short, in one cache and one batch."""
    cache = PagedKvCache(
        tiny_model.geometry(), whole_layers=2, pages_front=128, pages_rest=128, poison=True
    )
    runner = DecodeRunner(tiny_model, cache, attention=TorchDecodeAttention())
    selects = itertools.cycle(KvSelect)
    rows, wanted = [], []
    for number in range(8):
        params = pruning(kv_select=next(selects), keep_rate=1.0 if number == 6 else 0.4)
        captured = prefill(tiny_model, tokens_of(40 + 27 * number, seed=number), params)
        handed, first = hand_over(captured), first_token(captured)
        solo_cache, alone = solo_row(
            tiny_model, prompt=handed, first_token=first, sparsity=DELTA, max_tokens=16
        )
        solo = DecodeRunner(tiny_model, solo_cache, attention=TorchDecodeAttention())
        gaps = [1.0, *(top2_gap(advance(solo, [alone])[0]) for _ in range(12))]
        wanted.append((alone.generated, gaps))
        rows.append(shared_cache_row(tiny_model, cache, handed, first=first, number=number))
    for _ in range(12):
        runner.step(rows)
    for row, (tokens, gaps) in zip(rows, wanted, strict=True):
        assert_same_tokens(row.generated, gaps, tokens)
        cache.release(row.prompt.pages)
    cache.check_idle()


@pytest.fixture(scope="module")
def embedded(smollm2_dir: Path) -> Transformer:
    return load_folder(smollm2_dir)


@pytest.fixture(scope="module")
def theirs(smollm2_dir: Path) -> tuple[list[int], list[int]]:
    """A prompt of real text and 65 greedy tokens of transformers."""
    import pydoc_data.topics

    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = pydoc_data.topics.topics["assignment"][:1500]
    ids = AutoTokenizer.from_pretrained(smollm2_dir)(text)["input_ids"]
    peer = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32)
    answer = peer.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        do_sample=False,
        max_new_tokens=65,
        min_new_tokens=65,
        eos_token_id=None,
        pad_token_id=0,
    )
    return ids, answer[0, len(ids) :].tolist()


@pytest.mark.parametrize(
    "sparsity",
    [None, SparsityParams(full_layers=(0, 1, 2, 14, 22), page_budget=1000)],
    ids=["dense", "budget of all pages"],
)
def test_keeping_all_continues_as_transformers_does(
    embedded: Transformer,
    theirs: tuple[list[int], list[int]],
    sparsity: SparsityParams | None,
) -> None:
    ids, wanted = theirs
    captured = prefill(embedded, ids, PruningParams(pruning_layer=14, keep_rate=1.0))
    cache, row = solo_row(
        embedded,
        prompt=hand_over(captured),
        first_token=first_token(captured),
        sparsity=sparsity,
        max_tokens=65,
    )
    runner = DecodeRunner(embedded, cache, attention=TorchDecodeAttention())
    gaps = [top2_gap(captured.output.logits_V)]
    gaps += [top2_gap(advance(runner, [row])[0]) for _ in range(64)]
    assert_same_tokens(row.generated, gaps, wanted)

"""The curves behind Δ-layers against attention written out in plain loops, on the tiny model."""

import math

import pytest
import torch

from loadtest.calibration.delta_attention import record_steps, spread_steps
from loadtest.calibration.delta_curves import LayerCurves, mean_curves, step_curves
from loadtest.quality.tail import PromptKv
from prefill_service.engine.evaluate import rank_and_prefill
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

IDS = [(7 * i) % 61 + 5 for i in range(150)]
TAIL = [(11 * i) % 59 + 3 for i in range(80)]
STEPS = [0, 37, 70]
PAGE = 16
WHOLE = PruningParams(pruning_layer=0, ranker="full", keep_rate=1.0)


def slow_probabilities(
    model: Transformer, ids: list[int]
) -> tuple[list[torch.Tensor], list[float]]:
    """Attention [H, T] of the last token in every layer, and how much each turns the stream."""
    positions = torch.arange(len(ids))
    rope = model.rope(positions, context_tokens=len(ids))
    x = model.embed(torch.tensor(ids))
    found, turns = [], []
    for layer in model.layers:
        q, k, v = layer.qkv(x, rope)
        share = q.shape[1] // k.shape[1]
        out = torch.zeros_like(q)
        for head in range(q.shape[1]):
            logits = q[:, head] @ k[:, head // share].T / math.sqrt(q.shape[2])
            logits = logits.masked_fill(positions[None] > positions[:, None], -math.inf)
            probs = logits.softmax(dim=-1)
            out[:, head] = probs @ v[:, head // share]
            found.append(probs[-1])
        y = layer.finish(x, out)
        turns.append(1 - float(x[-1] @ y[-1] / (x[-1].norm() * y[-1].norm())))
        x = y
    heads = len(found) // len(model.layers)
    layers = [torch.stack(found[i * heads : (i + 1) * heads]) for i in range(len(model.layers))]
    return layers, turns


def slow_pages(values: list[float]) -> list[float]:
    return [sum(values[start : start + PAGE]) for start in range(0, len(values), PAGE)]


def slow_choice(pages: list[float], *, budget: int, recency: int) -> set[int]:
    forced = {0, *range(len(pages) - recency, len(pages))}
    others = sorted(set(range(len(pages))) - forced, key=lambda page: (-pages[page], page))
    return forced | set(others[: budget - len(forced)])


def slow_cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


@pytest.fixture(scope="module")
def recorded(tiny_model: Transformer) -> list[LayerCurves]:
    full = rank_and_prefill(tiny_model, attention=TorchAttention(), token_ids=IDS, params=WHOLE)
    steps = record_steps(tiny_model, PromptKv.of(full), tail_ids=TAIL, steps=STEPS)
    return [step_curves(step, page_budget=6, recency_pages=2) for step in steps]


@torch.inference_mode()
def test_both_curves_equal_the_slow_ones(
    tiny_model: Transformer, recorded: list[LayerCurves]
) -> None:
    for step, curves in zip(STEPS, recorded, strict=True):
        layers, turns = slow_probabilities(tiny_model, IDS + TAIL[: step + 1])
        scores = [slow_pages(probs.amax(dim=0).tolist()) for probs in layers]
        mass = [slow_pages(probs.mean(dim=0).tolist()) for probs in layers]
        middle = [[0.0, *pages[1:-2], 0.0, 0.0] for pages in scores]
        assert curves.turn_Y.tolist() == pytest.approx(turns, abs=1e-5)
        assert curves.shift_Y[0] == curves.shift_with_sinks_Y[0] == 0.0
        for later in range(1, len(layers)):
            shift = 1 - slow_cosine(middle[later - 1], middle[later])
            assert curves.shift_Y[later].item() == pytest.approx(shift, abs=1e-5)
            shift = 1 - slow_cosine(scores[later - 1], scores[later])
            assert curves.shift_with_sinks_Y[later].item() == pytest.approx(shift, abs=1e-5)
        for first, pages in enumerate(scores):
            chosen = slow_choice(pages, budget=6, recency=2)
            for later, held in enumerate(mass):
                recall = sum(held[page] for page in chosen)
                assert curves.recall_YY[first, later].item() == pytest.approx(recall, abs=1e-5)


def test_every_sample_counts_alike_and_the_low_end_is_over_all_steps(
    recorded: list[LayerCurves],
) -> None:
    first, *others = recorded
    mean = mean_curves([[first], others])
    expected = (first.recall_YY + (others[0].recall_YY + others[1].recall_YY) / 2) / 2
    assert torch.allclose(mean.recall_YY, expected)
    low = torch.stack([curves.recall_YY for curves in recorded]).quantile(0.1, dim=0)
    assert torch.equal(mean.recall_low_YY, low)


@pytest.mark.parametrize(("total", "count"), [(1, 12), (5, 12), (48, 12), (192, 12), (13, 12)])
def test_steps_spread_over_the_whole_tail(total: int, count: int) -> None:
    steps = spread_steps(total, count=count)
    assert len(steps) == min(total, count)
    assert sorted(set(steps)) == steps
    assert 0 <= steps[0] <= total // count
    assert steps[-1] >= total - 1 - total // count

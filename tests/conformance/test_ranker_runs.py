"""Whole runs of every ranking method over a tiny model, by one suite."""

from dataclasses import replace

import pytest
import torch

from prefill_service.engine.evaluate import (
    EvaluatedPrompt,
    SideInputs,
    each_variant,
    evaluate_family,
    rank_and_prefill,
)
from prefill_service.ranking.registry import ranker_registry
from shared.errors import CancelledError, ConfigError, InvalidRequestError
from shared.model.attention import TorchAttention
from shared.model.random import random_config, random_model
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams
from tests.support.tiny_model import dense_logits

NAMES = ranker_registry().names()
COMPACT = {"gemfilter", "self-information"}
BASE = PruningParams(
    pruning_layer=3,
    deferred_layers=2,
    aggregation_window=2,
    keep_rate=0.25,
    kv_select=KvSelect.HEAD,
)
TOKENS = 120


@pytest.fixture(scope="module")
def draft() -> Transformer:
    return random_model(random_config("llama", num_layers=3), seed=5)


def prompt(tokens: int = TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randint(3, 512, (tokens,), generator=generator).tolist()


def side(draft: Transformer, tokens: int = TOKENS) -> SideInputs:
    scores_L = torch.rand((tokens,), generator=torch.Generator().manual_seed(3))
    return SideInputs(oracle_L=scores_L, draft=draft)


def run(
    model: Transformer, draft: Transformer, params: PruningParams, tokens: int = TOKENS
) -> EvaluatedPrompt:
    return rank_and_prefill(
        model,
        attention=TorchAttention(),
        token_ids=prompt(tokens),
        params=params,
        side=side(draft, tokens),
    )


@pytest.mark.parametrize("tokens", [10, 33, TOKENS])
@pytest.mark.parametrize("name", NAMES)
def test_counts_and_order(
    tiny_model: Transformer, draft: Transformer, name: str, tokens: int
) -> None:
    result = run(tiny_model, draft, replace(BASE, ranker=name), tokens)
    whole = name in {"full", "snapkv"}
    kept = tokens if whole else BASE.kept_count(tokens)
    assert result.kept_N.shape == (kept,)
    assert (result.kept_N.diff() > 0).all()
    assert result.kept_N[0] == 0, "protected"
    assert result.kept_N[-1] < tokens
    assert result.next_position == (kept if name in COMPACT else tokens)
    assert result.logits_V.shape == (512,)
    assert torch.isfinite(result.logits_V).all()
    assert len(result.layer_kv) == 6
    for cache in result.layer_kv:
        slots = cache.keys_NGD.shape[0]
        assert cache.keys_NGD.shape == cache.values_NGD.shape == (slots, 2, 16)
        assert cache.positions_RN.shape in {(1, slots), (2, slots)}
        assert (cache.positions_RN.diff(dim=1) > 0).all()
        assert 0 <= int(cache.positions_RN.min()) <= int(cache.positions_RN.max()) < tokens


@pytest.mark.parametrize("name", NAMES)
def test_score_covers_what_was_ranked(
    tiny_model: Transformer, draft: Transformer, name: str
) -> None:
    result = run(tiny_model, draft, replace(BASE, ranker=name, protect_first=False))
    if name in {"full", "snapkv"}:
        assert result.score_L is None
        return
    assert result.score_L is not None
    assert result.score_L.shape == (TOKENS,)
    forced = result.score_L.isnan().nonzero()[:, 0].tolist()
    unforced = name in {"gemfilter", "gemfilter-original", "speculative"}
    assert forced == ([] if unforced else list(range(TOKENS - 8, TOKENS)))
    kept = result.kept_N.tolist()
    assert set(forced) <= set(kept)
    chosen = [float(result.score_L[i]) for i in kept if i not in forced]
    dropped = [float(result.score_L[i]) for i in range(TOKENS) if i not in kept]
    assert min(chosen) >= max(dropped)


@pytest.mark.parametrize("name", NAMES)
def test_keep_all_equals_dense(tiny_model: Transformer, draft: Transformer, name: str) -> None:
    result = run(tiny_model, draft, replace(BASE, ranker=name, keep_rate=1.0))
    expected = dense_logits(tiny_model, torch.tensor(prompt()))[-1]
    torch.testing.assert_close(result.logits_V, expected, atol=1e-4, rtol=0)
    assert result.kept_N.tolist() == list(range(TOKENS))
    assert result.next_position == TOKENS
    assert all(c.positions_RN.tolist() == [list(range(TOKENS))] for c in result.layer_kv)


@pytest.mark.parametrize("name", NAMES)
def test_deterministic(tiny_model: Transformer, draft: Transformer, name: str) -> None:
    one, two = (run(tiny_model, draft, replace(BASE, ranker=name)) for _ in range(2))
    assert torch.equal(one.kept_N, two.kept_N)
    assert torch.equal(one.logits_V, two.logits_V)


def test_a_family_equals_its_members_alone(tiny_model: Transformer, draft: Transformer) -> None:
    variants = [replace(BASE, ranker=name) for name in NAMES]
    variants += [replace(BASE, pruning_layer=lp) for lp in (0, 1, 2, 4, 5)]
    variants += [replace(BASE, observation_window=4), replace(BASE, kv_select=KvSelect.LAYER)]
    variants += [replace(BASE, kv_rate=rate) for rate in (0.1, 0.5, 1.0)]
    together = evaluate_family(
        tiny_model,
        attention=TorchAttention(),
        token_ids=prompt(),
        variants=variants,
        side=side(draft),
    )
    for params, ours in zip(variants, together, strict=True):
        alone = run(tiny_model, draft, params)
        assert torch.equal(ours.kept_N, alone.kept_N), params
        torch.testing.assert_close(ours.logits_V, alone.logits_V, atol=1e-4, rtol=0)
        for cache, lone in zip(ours.layer_kv, alone.layer_kv, strict=True):
            assert torch.equal(cache.positions_RN, lone.positions_RN), params
            torch.testing.assert_close(cache.keys_NGD, lone.keys_NGD, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_stops_where_it_is_told(tiny_model: Transformer, draft: Transformer, name: str) -> None:
    looks = 0

    def check(stop_at: int = 0) -> None:
        nonlocal looks
        looks += 1
        if looks == stop_at:
            raise CancelledError("stopped")

    def runs(stop_at: int) -> None:
        nonlocal looks
        looks = 0
        list(
            each_variant(
                tiny_model,
                attention=TorchAttention(),
                token_ids=prompt(),
                variants=[replace(BASE, ranker=name)],
                side=side(draft),
                check=lambda: check(stop_at),
            )
        )

    runs(0)
    total = looks
    assert total >= 6
    for stop_at in range(1, total + 1):
        with pytest.raises(CancelledError):
            runs(stop_at)
        assert looks == stop_at


@pytest.mark.parametrize("name", ["speculative", "speculative-forced", "speculative-tokens"])
def test_a_draft_is_needed_and_must_share_the_vocabulary(
    tiny_model: Transformer, name: str
) -> None:
    def drafted_by(draft: Transformer | None) -> EvaluatedPrompt:
        return rank_and_prefill(
            tiny_model,
            attention=TorchAttention(),
            token_ids=prompt(),
            params=replace(BASE, ranker=name),
            side=SideInputs(draft=draft),
        )

    with pytest.raises(ConfigError, match="draft"):
        drafted_by(None)
    with pytest.raises(ConfigError, match="vocabulary"):
        drafted_by(random_model(replace(random_config("llama"), vocab_size=600), seed=5))


def test_what_cannot_be_evaluated(tiny_model: Transformer) -> None:
    attention = TorchAttention()
    with pytest.raises(InvalidRequestError, match="no tokens"):
        rank_and_prefill(tiny_model, attention=attention, token_ids=[], params=BASE)
    with pytest.raises(InvalidRequestError, match="512"):
        rank_and_prefill(tiny_model, attention=attention, token_ids=[512], params=BASE)
    with pytest.raises(ConfigError, match="pruning_layer 6"):
        rank_and_prefill(
            tiny_model,
            attention=attention,
            token_ids=prompt(),
            params=replace(BASE, pruning_layer=6),
        )
    assert evaluate_family(tiny_model, attention=attention, token_ids=prompt(), variants=[]) == []

"""Every ranking method of the family against its slow twin."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prefill_service.engine.evaluate import EvaluatedPrompt, SideInputs, rank_and_prefill
from prefill_service.ranking.speculative import LOOK_AHEAD
from shared.model.attention import TorchAttention
from shared.model.random import random_config, random_model
from shared.model.random_folder import save_random_model
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams
from tests.reference.claa_twin import SlowLlama
from tests.reference.ranking_twin import (
    TwinRun,
    gemfilter_scores,
    self_information_scores,
    speculative_scores,
    twin_chosen_first,
    twin_fastkv,
    twin_pruned,
    twin_snapkv,
)

TOKENS = 70
BASE = PruningParams(
    pruning_layer=3,
    deferred_layers=2,
    aggregation_window=2,
    keep_rate=0.3,
    protect_first=False,
    pool_kernel=5,
)
DRAFT_CONFIG = random_config("llama", num_layers=2)
DRAFT_SEED = 5


@pytest.fixture(scope="module")
def slow_model(tiny_model_dir: Path) -> SlowLlama:
    return SlowLlama(tiny_model_dir)


@pytest.fixture(scope="module")
def slow_draft(tmp_path_factory: pytest.TempPathFactory) -> SlowLlama:
    folder = tmp_path_factory.mktemp("drafts") / "draft"
    return SlowLlama(save_random_model(folder, DRAFT_CONFIG, seed=DRAFT_SEED))


@pytest.fixture(scope="module")
def draft() -> Transformer:
    return random_model(DRAFT_CONFIG, seed=DRAFT_SEED)


def prompt(tokens: int = TOKENS) -> list[int]:
    generator = torch.Generator().manual_seed(tokens + 1)
    return torch.randint(3, 512, (tokens,), generator=generator).tolist()


def run(
    model: Transformer, params: PruningParams, side: SideInputs | None = None
) -> EvaluatedPrompt:
    return rank_and_prefill(
        model,
        attention=TorchAttention(),
        token_ids=prompt(),
        params=params,
        side=side or SideInputs(),
    )


def assert_equal(ours: EvaluatedPrompt, twin: TwinRun) -> None:
    assert ours.kept_N.tolist() == twin.kept
    assert ours.next_position == twin.next_position
    assert [cache.positions_RN.tolist() for cache in ours.layer_kv] == twin.rows
    torch.testing.assert_close(ours.logits_V.double(), twin.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("protect_first", [True, False], ids=["protected", "unprotected"])
@pytest.mark.parametrize("lp", [0, 3, 5])
@pytest.mark.parametrize("name", ["gemfilter", "gemfilter-original"])
def test_gemfilter(
    tiny_model: Transformer, slow_model: SlowLlama, name: str, lp: int, protect_first: bool
) -> None:
    params = replace(BASE, ranker=name, pruning_layer=lp, protect_first=protect_first)
    scores = gemfilter_scores(slow_model, prompt(), params)
    compact = name == "gemfilter"
    twin = twin_chosen_first(slow_model, prompt(), params, scores, compact=compact)
    assert_equal(run(tiny_model, params), twin)


def test_self_information(tiny_model: Transformer, slow_model: SlowLlama) -> None:
    params = replace(BASE, ranker="self-information")
    scores = self_information_scores(slow_model, prompt(), params)
    twin = twin_chosen_first(slow_model, prompt(), params, scores, compact=True)
    assert_equal(run(tiny_model, params), twin)


@pytest.mark.parametrize(
    ("name", "chunk", "forced"),
    [
        ("speculative", 32, False),
        ("speculative-forced", 32, True),
        ("speculative-tokens", 1, True),
    ],
)
def test_speculative(  # noqa: PLR0917
    tiny_model: Transformer,
    slow_model: SlowLlama,
    draft: Transformer,
    slow_draft: SlowLlama,
    name: str,
    chunk: int,
    forced: bool,
) -> None:
    params = replace(BASE, ranker=name)
    scores = speculative_scores(
        slow_draft, prompt(), params, steps=LOOK_AHEAD, chunk=chunk, forced=forced
    )
    twin = twin_chosen_first(slow_model, prompt(), params, scores, compact=False)
    assert_equal(run(tiny_model, params, SideInputs(draft=draft)), twin)


@pytest.mark.parametrize("kv_rate", [None, 0.15, 0.6, 1.0])
@pytest.mark.parametrize("lp", [0, 3, 5])
def test_fastkv(
    tiny_model: Transformer, slow_model: SlowLlama, lp: int, kv_rate: float | None
) -> None:
    params = replace(BASE, ranker="fastkv", pruning_layer=lp, kv_rate=kv_rate)
    twin = twin_fastkv(slow_model, prompt(), replace(params, kv_select=KvSelect.HEAD))
    assert_equal(run(tiny_model, params), twin)


@pytest.mark.parametrize("protect_first", [True, False], ids=["protected", "unprotected"])
def test_snapkv(tiny_model: Transformer, slow_model: SlowLlama, protect_first: bool) -> None:
    params = replace(BASE, ranker="snapkv", protect_first=protect_first)
    twin = twin_snapkv(slow_model, prompt(), replace(params, kv_select=KvSelect.HEAD))
    assert_equal(run(tiny_model, params), twin)
    only_cache = replace(params, keep_rate=0.9, kv_rate=0.3)
    assert_equal(run(tiny_model, only_cache), twin)


def known_scores(name: str, oracle: list[float], *, seed: int) -> list[float]:
    """What a method that looks at nothing gives the candidates."""
    if name == "oracle":
        return oracle
    if name == "recency":
        return [float(i) for i in range(len(oracle))]
    return torch.randperm(len(oracle), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("kv_rate", [None, 0.15, 0.6])
@pytest.mark.parametrize("m", [0, 2])
@pytest.mark.parametrize("name", ["recency", "random", "oracle"])
def test_controls_and_oracle(
    tiny_model: Transformer, slow_model: SlowLlama, name: str, m: int, kv_rate: float | None
) -> None:
    params = replace(BASE, ranker=name, deferred_layers=m, kv_rate=kv_rate, seed=11)
    oracle_L = torch.rand((TOKENS,), generator=torch.Generator().manual_seed(2))
    scores = known_scores(name, oracle_L[: TOKENS - 8].tolist(), seed=params.seed)
    twin = twin_pruned(slow_model, prompt(), params, scores)
    assert_equal(run(tiny_model, params, SideInputs(oracle_L=oracle_L)), twin)

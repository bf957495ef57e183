"""What holds for every method at any length and rate."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_service.engine.evaluate import SideInputs, each_variant
from prefill_service.ranking.registry import ranker_registry
from shared.model.attention import TorchAttention
from shared.model.random import random_config, random_model
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams

# Wall time says nothing here: a busy machine pauses any example.
unhurried = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def small() -> Transformer:
    return random_model(random_config("llama", num_layers=3), seed=2)


@st.composite
def params(draw: st.DrawFn) -> PruningParams:
    """Parameters of any method, for a model of three layers."""
    return PruningParams(
        ranker=draw(st.sampled_from(ranker_registry().names())),
        pruning_layer=draw(st.integers(0, 2)),
        keep_rate=draw(st.floats(0.01, 1.0)),
        kv_rate=draw(st.none() | st.floats(0.01, 1.0)),
        deferred_layers=draw(st.integers(0, 3)),
        aggregation_window=draw(st.integers(1, 3)),
        observation_window=draw(st.integers(1, 12)),
        pool_kernel=draw(st.sampled_from([1, 3, 7])),
        kv_select=draw(st.sampled_from(KvSelect)),
        protect_first=draw(st.booleans()),
        min_keep=draw(st.integers(0, 20)),
        seed=draw(st.integers(0, 5)),
    )


@unhurried
@given(length=st.integers(1, 90), variants=st.lists(params(), min_size=1, max_size=4))
def test_counts_order_and_nesting(
    small: Transformer, length: int, variants: list[PruningParams]
) -> None:
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 512, (length,), generator=generator).tolist()
    side = SideInputs(oracle_L=torch.rand((length,), generator=generator), draft=small)
    results = each_variant(
        small, attention=TorchAttention(), token_ids=ids, variants=variants, side=side
    )
    for asked, result in zip(variants, results, strict=True):
        used = result.params
        assert used.ranker == asked.ranker
        kept, caches = result.kept_N.tolist(), result.layer_kv
        assert kept == sorted(set(kept))
        assert set(kept) <= set(range(length))
        untouched = used.ranker in {"full", "snapkv"}
        assert len(kept) == (length if untouched else used.kept_count(length))
        assert torch.isfinite(result.logits_V).all()
        for layer, cache in enumerate(caches):
            slots = cache.keys_NGD.shape[0]
            assert slots <= length
            assert cache.positions_RN.shape[1] == slots
            assert (cache.positions_RN.diff(dim=1) > 0).all()
            ran_on_kept = layer > used.pruning_layer and result.next_position == length
            if ran_on_kept and not untouched:
                assert set(cache.positions_RN.flatten().tolist()) <= set(kept)
                assert slots == min(used.kv_count(length), len(kept))

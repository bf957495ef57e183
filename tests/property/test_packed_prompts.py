"""Any mix of prompts gives, computed together, what each of them gives alone."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_service.engine.runner import PrefillRunner
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.types.methods import Aggregation, KvSelect, PruningParams
from tests.support.packs import PackMember, check_pack

BASE = PruningParams(
    pruning_layer=3, aggregation_window=2, deferred_layers=2, keep_rate=0.25, min_keep=0
)


@st.composite
def pruning(draw: st.DrawFn) -> PruningParams:
    params = replace(
        BASE,
        pruning_layer=draw(st.sampled_from([0, 2, 3, 3, 3, 5])),
        keep_rate=draw(st.sampled_from([0.2, 0.5, 1.0])),
        kv_select=draw(st.sampled_from(list(KvSelect))),
        aggregation=draw(st.sampled_from(list(Aggregation))),
        observation_window=draw(st.sampled_from([1, 4, 8])),
        ranker=draw(st.sampled_from(["claa", "claa", "claa", "fastkv", "snapkv", "recency"])),
    )
    if params.ranker == "claa" and draw(st.integers(0, 3)) == 0:
        return replace(params, mass=0.6, min_rate=0.2, max_rate=0.8, keep_rate=0.8)
    return params


members = st.builds(
    PackMember,
    tokens=st.one_of(st.integers(1, 3), st.integers(4, 90)),
    params=pruning(),
    stops_at=st.sampled_from([0, 0, 0, 0, 1, 2, 5, 9]),
    fails_at=st.sampled_from([-1, -1, -1, -1, 0, 3, 5]),
)


@settings(max_examples=60, deadline=None)
@given(pack=st.lists(members, min_size=1, max_size=6), chunk=st.sampled_from([1, 7, 32, 1024]))
def test_a_pack_equals_its_prompts_alone(
    tiny_model: Transformer, pack: list[PackMember], chunk: int
) -> None:
    total = sum(member.tokens for member in pack)
    runner = PrefillRunner(
        tiny_model,
        attention=TorchAttention(),
        chunk_tokens=max(chunk, total // 40),  # blocks of one token only where they are few
    )
    check_pack(runner, tiny_model, pack)

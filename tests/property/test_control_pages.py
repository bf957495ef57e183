"""Pages of the policies without state hold their promises for any shape."""

from collections.abc import Callable

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decode_service.sparsity.base import PagePolicy
from decode_service.sparsity.oracle_topk import OracleTopkPolicy
from decode_service.sparsity.random import RandomPolicy
from decode_service.sparsity.recency import RecencyPolicy
from decode_service.sparsity.streaming import StreamingPolicy
from shared.kv.geometry import pages_for
from shared.types.methods import SparsityParams
from tests.support.sparse_steps import FakeKv, plain_facts

# Wall time says nothing here: a busy machine pauses any example.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
POLICIES: tuple[Callable[..., PagePolicy], ...] = (
    StreamingPolicy,
    RecencyPolicy,
    RandomPolicy,
    OracleTopkPolicy,
)


@st.composite
def policies(draw: st.DrawFn) -> tuple[PagePolicy, SparsityParams]:
    """A policy of two layers, the second sparse."""
    recency = draw(st.integers(1, 5))
    params = SparsityParams(
        full_layers=(0,),
        page_budget=recency + draw(st.integers(2, 8)),
        recency_pages=recency,
        seed=draw(st.integers(0, 2**40)),
    )
    return draw(st.sampled_from(POLICIES))(params, num_layers=2), params


@unhurried
@given(policies(), st.integers(1, 400), st.integers(1, 50), st.booleans())
def test_ascending_unique_in_range_exact_and_with_what_is_forced(
    made: tuple[PagePolicy, SparsityParams],
    prompt_tokens: int,
    generated: int,
    force: bool,
) -> None:
    policy, params = made
    length = prompt_tokens + generated
    row = policy.begin(plain_facts(prompt_tokens, num_layers=2), force=force)
    kv = FakeKv(torch.randn(length, 2, 8))
    selection = row.step(generated=generated).select(1, torch.randn(4, 8), kv)
    total = pages_for(length)
    if selection is None:
        assert total <= params.page_budget
        assert not force
        return
    assert total > params.page_budget or force
    (pages,) = selection.units_RU.tolist()
    assert pages == sorted(set(pages))
    assert len(pages) == min(total, params.page_budget)
    assert set(range(max(0, total - params.recency_pages), total)) <= set(pages)
    assert pages[0] == 0 or policy.name == "recency"
    assert selection.visible == sum(min(16, length - 16 * page) for page in pages)

"""Bounds of a page bound every logit of it."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from decode_service.sparsity.page_bounds import logit_bounds, page_bounds


@given(
    slots=st.integers(1, 70),
    heads=st.sampled_from([(1, 1), (1, 5), (2, 2), (3, 1)]),
    head_dim=st.sampled_from([1, 4, 16]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.integers(0, 2**16),
)
def test_no_slot_has_a_larger_logit_than_its_page_allows(
    slots, heads, head_dim, scale, dtype, seed
):
    num_kv_heads, group = heads
    generator = torch.Generator().manual_seed(seed)
    keys = (scale * torch.randn(slots, num_kv_heads, head_dim, generator=generator)).to(dtype)
    query = torch.randn(num_kv_heads * group, head_dim, generator=generator).to(dtype)
    bounds = logit_bounds(query, page_bounds(keys)).double()
    wide = keys.double().repeat_interleave(group, dim=1)
    logits = torch.einsum("hd,thd->ht", query.double(), wide) * head_dim**-0.5
    of_slots = bounds.flatten(0, 1).repeat_interleave(16, dim=1)[:, :slots]
    rounding = 1e-5 * (1.0 + of_slots.abs())
    assert bool((logits <= of_slots + rounding).all())

"""Steps on a throw-away row, so that the first requests do not pay for first-use costs."""

import torch

from decode_service.engine.kv_cache import PagedKvCache, SequencePages
from decode_service.engine.runner import ServingRunner
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PositionKind
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams, StopConditions

_TOKENS = 16


def warm_up(
    runner: ServingRunner, cache: PagedKvCache, *, num_heads: int, sparsity: SparsityParams
) -> None:
    """Prepares for dense rows and for the worker's page policy; needs an idle cache.

    Args:
        runner: is prepared.
        cache: its pages; those that are taken are given back.
        num_heads: query heads of the model.
        sparsity: what requests read unless they say otherwise.
    """
    pages = cache.reserve(front_tokens=_TOKENS, rest_tokens=_TOKENS)
    assert pages is not None, "a cache has at least one page"
    _write_zeros(cache, pages)
    for params in (None, sparsity):
        runner.prepare(_row(cache, pages, num_heads=num_heads, sparsity=params))
    cache.release(pages)


def _write_zeros(cache: PagedKvCache, pages: SequencePages) -> None:
    geometry = cache.geometry
    zeros_NGD = torch.zeros(
        _TOKENS - 1,
        geometry.num_kv_heads,
        geometry.head_dim,
        dtype=getattr(torch, geometry.dtype),
        device=cache.device,
    )
    for layer in range(geometry.num_layers):
        cache.write_prompt(pages, layer=layer, keys_NGD=zeros_NGD, values_NGD=zeros_NGD)


def _row(
    cache: PagedKvCache, pages: SequencePages, *, num_heads: int, sparsity: SparsityParams | None
) -> Sequence:
    geometry = cache.geometry
    layout = KvLayout(kind=PositionKind.IDENTITY, slots=_TOKENS - 1, positions_RN=None)
    return Sequence(
        key=HandoffKey("warm-up"),
        prompt=PromptKv(
            pages=pages,
            layouts=(layout,),
            layer_layouts=(0,) * geometry.num_layers,
            whole_layers=cache.whole_layers,
            prompt_tokens=_TOKENS - 1,
        ),
        policy=policy_for(sparsity, num_layers=geometry.num_layers),
        num_heads=num_heads,
        num_kv_heads=geometry.num_kv_heads,
        sampling=SamplingParams(temperature=0.0),
        stop=StopConditions(max_tokens=1),
        generated=[0],
    )

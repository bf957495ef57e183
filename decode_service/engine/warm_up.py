"""One step on a throw-away row, so that the first request does not pay for first-use costs."""

import torch

from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import ObservedRunner
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PositionKind
from shared.types.sampling import SamplingParams, StopConditions

_TOKENS = 16


def warm_up(runner: ObservedRunner, cache: PagedKvCache) -> None:
    """Steps a row over a prompt of zeros and gives its pages back; needs an idle cache."""
    geometry = cache.geometry
    pages = cache.reserve(front_tokens=_TOKENS, rest_tokens=_TOKENS)
    assert pages is not None, "a cache has at least one page"
    zeros_NGD = torch.zeros(
        _TOKENS - 1,
        geometry.num_kv_heads,
        geometry.head_dim,
        dtype=getattr(torch, geometry.dtype),
        device=cache.device,
    )
    for layer in range(geometry.num_layers):
        cache.write_prompt(pages, layer=layer, keys_NGD=zeros_NGD, values_NGD=zeros_NGD)
    layout = KvLayout(kind=PositionKind.IDENTITY, slots=_TOKENS - 1, positions_RN=None)
    row = Sequence(
        key=HandoffKey("warm-up"),
        prompt=PromptKv(
            pages=pages,
            layouts=(layout,),
            layer_layouts=(0,) * geometry.num_layers,
            whole_layers=cache.whole_layers,
            prompt_tokens=_TOKENS - 1,
        ),
        policy=policy_for(None, num_layers=geometry.num_layers),
        num_heads=geometry.num_kv_heads,  # dense rows do not look at it
        num_kv_heads=geometry.num_kv_heads,
        sampling=SamplingParams(temperature=0.0),
        stop=StopConditions(max_tokens=1),
        generated=[0],
    )
    runner.step([row])
    cache.release(pages)

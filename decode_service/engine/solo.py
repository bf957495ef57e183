"""One row in a page cache of its own: inspection and benchmarks decode without a server.

Shapes: N prompt slots, R rows of positions, G KV heads, D head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from decode_service.engine import sequence as rows
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.kv.geometry import pages_for
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import LayoutSpec
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams, StopConditions

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTensors:
    """A prompt's KV as plain tensors, in the terms of a handoff's manifest."""

    prompt_tokens: int
    """Original prompt length L."""
    layouts: tuple[LayoutSpec, ...]
    """Slot-to-position maps."""
    layer_layouts: tuple[int, ...]
    """Layout of each layer."""
    positions: Mapping[int, Tensor]
    """Positions [R, N] of each layout that is not an identity, any integer type."""
    keys_values: Sequence[tuple[Tensor, Tensor]]
    """Rotated keys and values [N, G, D] of each layer."""


def solo_row(
    model: Transformer,
    *,
    prompt: PromptTensors,
    first_token: int,
    sparsity: SparsityParams | None,
    max_tokens: int,
    sampling: SamplingParams = GREEDY,
) -> tuple[PagedKvCache, rows.Sequence]:
    """A row that holds the prompt, and the cache it lives in, with room for the answer.

    Args:
        model: the decoder.
        prompt: the prompt's KV.
        first_token: the answer's first token, which the prefill side draws.
        sparsity: which slots are read; None: all.
        max_tokens: longest answer, the first token counted.
        sampling: how tokens are drawn.

    Raises:
        ManifestError: the tensors contradict each other.
        ConfigError: the sparsity parameters do not fit the model.
    """
    whole_layers = _whole_layers(prompt)
    front, rest = (prompt.keys_values[layer][0].shape[0] + max_tokens for layer in (0, -1))
    cache = PagedKvCache(
        model.geometry(),
        whole_layers=whole_layers,
        pages_front=pages_for(front),
        pages_rest=pages_for(rest),
        device=model.device,
    )
    pages = cache.reserve(front_tokens=front, rest_tokens=rest)
    assert pages is not None, "the cache was sized for this row"
    for layer, (keys_NGD, values_NGD) in enumerate(prompt.keys_values):
        cache.write_prompt(pages, layer=layer, keys_NGD=keys_NGD, values_NGD=values_NGD)
    row = rows.Sequence(
        key=HandoffKey("solo"),
        prompt=rows.PromptKv(
            pages=pages,
            layouts=tuple(
                layout.on(cache.device)
                for layout in _layouts(prompt, num_kv_heads=model.config.num_kv_heads)
            ),
            layer_layouts=prompt.layer_layouts,
            whole_layers=whole_layers,
            prompt_tokens=prompt.prompt_tokens,
        ),
        policy=policy_for(sparsity, num_layers=model.config.num_layers),
        num_heads=model.config.num_heads,
        num_kv_heads=model.config.num_kv_heads,
        sampling=sampling,
        stop=StopConditions(max_tokens=max_tokens),
        generated=[first_token],
    )
    return cache, row


def _layouts(prompt: PromptTensors, *, num_kv_heads: int) -> tuple[KvLayout, ...]:
    return tuple(
        KvLayout.from_spec(
            spec,
            prompt.positions.get(index),
            prompt_tokens=prompt.prompt_tokens,
            num_kv_heads=num_kv_heads,
        )
        for index, spec in enumerate(prompt.layouts)
    )


def _whole_layers(prompt: PromptTensors) -> int:
    """Leading layers that hold the whole prompt."""
    pruned = [layer for layer, layout in enumerate(prompt.layer_layouts) if layout != 0]
    return pruned[0] if pruned else len(prompt.layer_layouts)

"""Runs one prompt through any number of ranking methods, sharing what they have in common.

Every layer that several variants run on the whole prompt runs once, to the depth of the deepest;
a variant then costs its own scores, its choice, and the layers after its pruning layer on the
tokens that it kept. Results equal those of `PrefillRunner`, which serves, within rounding; here
everything stays in memory and no variant needs a layout that a worker could receive.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from prefill_service.engine.dense_pass import DensePass
from prefill_service.engine.family import EvaluatedPrompt, Family, LayerCache, Variant
from prefill_service.engine.layer_steps import LayerSteps
from prefill_service.engine.prompt_ids import checked_ids
from prefill_service.engine.prompt_view import DenseView
from prefill_service.ranking.base import SideInputs
from prefill_service.ranking.registry import NO_SIDE_INPUTS
from shared.errors import InvalidRequestError
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams

__all__ = [
    "EvaluatedPrompt",
    "LayerCache",
    "SideInputs",
    "each_variant",
    "evaluate_family",
    "rank_and_prefill",
]

ONE_BLOCK = 1 << 30
"""Tokens of a block: a prompt goes through a layer in one piece."""

_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN, which plans anew for every count of queries and keys: tenths of a second, and
every variant of every prompt has its own."""


def rank_and_prefill(
    model: Transformer,
    *,
    attention: PrefillAttention,
    token_ids: Sequence[int],
    params: PruningParams,
    side: SideInputs = NO_SIDE_INPUTS,
) -> EvaluatedPrompt:
    """One variant, and no layer further than it needs; raises what `each_variant` raises."""
    (only,) = each_variant(
        model, attention=attention, token_ids=token_ids, variants=[params], side=side
    )
    return only


def evaluate_family(
    model: Transformer,
    *,
    attention: PrefillAttention,
    token_ids: Sequence[int],
    variants: Sequence[PruningParams],
    side: SideInputs = NO_SIDE_INPUTS,
) -> list[EvaluatedPrompt]:
    """All variants in order, all in memory; raises what `each_variant` raises."""
    return list(
        each_variant(model, attention=attention, token_ids=token_ids, variants=variants, side=side)
    )


@torch.inference_mode()
def each_variant(
    model: Transformer,
    *,
    attention: PrefillAttention,
    token_ids: Sequence[int],
    variants: Sequence[PruningParams],
    side: SideInputs = NO_SIDE_INPUTS,
    check: Callable[[], None] = lambda: None,
) -> Iterator[EvaluatedPrompt]:
    """Variants in order, one at a time, so that their KV need not fit in memory together.

    `bypass_below` is ignored: a short prompt is pruned like any other. `check` is called before
    every layer and may raise.

    Raises:
        InvalidRequestError: an empty prompt, or a token id outside the vocabulary.
        ConfigError: an unknown method, a missing side input, or a layer the model does not have.
    """
    if not token_ids:
        raise InvalidRequestError("the prompt has no tokens: nothing can be evaluated on it")
    ids_T = checked_ids(token_ids, model)
    built = [
        Variant.build(model.config, params, side, prompt_tokens=len(token_ids))
        for params in variants
    ]
    if not built:
        return
    with sdpa_kernel(_KERNELS):
        dense = DensePass(
            model,
            steps=LayerSteps(
                attention=attention, config=model.config, chunk_tokens=ONE_BLOCK, check=check
            ),
            ids_T=ids_T,
            depth=max(variant.depth for variant in built),
            inputs={variant.params.pruning_layer for variant in built},
            window=max(variant.window for variant in built),
        )
    family = Family(dense, view=DenseView(dense, draft=side.draft))
    for variant in built:
        with sdpa_kernel(_KERNELS):
            evaluated = family.run(variant)
        yield evaluated

"""The KV that arms continue: the prompt read whole, and as the profile prunes it.

Shapes: N prompt slots, R rows of positions, L prompt tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decode_service.engine.solo import PromptTensors
from loadtest.sparsity.records import FULL, PRUNED, WHOLE
from prefill_service.engine.evaluate import EvaluatedPrompt, each_variant
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.types.kv_manifest import LayoutSpec, PositionKind
from shared.types.methods import KvSelect, PruningParams


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefill:
    """One prompt's KV."""

    name: str
    """Which prefill."""
    params: PruningParams | None
    """What it was pruned with; None: nothing was dropped."""
    tensors: PromptTensors
    """What decode rows begin with."""
    logits_V: Tensor
    """Float32 logits of the token after the prompt."""

    @property
    def kept(self) -> int:
        """Prompt slots of the last layer."""
        return int(self.tensors.keys_values[-1][0].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prefiller:
    """Reads prompts of one model."""

    model: Transformer
    """The decoder."""
    attention: PrefillAttention
    """Its prefill attention."""
    base: PruningParams
    """The profile's parameters."""
    keep_rate: float
    """Keep rate of the pruned prefills."""

    def params(self, name: str) -> PruningParams:
        """Parameters of a prefill, by its name."""
        if name == WHOLE:
            return replace(self.base, ranker=FULL, keep_rate=1.0, mass=None, kv_rate=None)
        pruned = replace(self.base, keep_rate=self.keep_rate, mass=None)
        _, _, select = name.partition("/")
        return pruned if name == PRUNED else replace(pruned, kv_select=KvSelect(select))

    def read(self, token_ids: Sequence[int], names: Sequence[str]) -> Iterator[Prefill]:
        """Prefills of one prompt in the order of `names`, one at a time; layers are shared.

        Raises:
            InvalidRequestError: the prompt is empty or not of this vocabulary.
            ConfigError: the parameters do not fit the model.
        """
        params = [self.params(name) for name in names]
        prompts = each_variant(
            self.model, attention=self.attention, token_ids=token_ids, variants=params
        )
        for name, own, prompt in zip(names, params, prompts, strict=True):
            yield Prefill(
                name=name,
                params=None if name == WHOLE else own,
                tensors=prompt_tensors(prompt),
                logits_V=prompt.logits_V,
            )


def prompt_tensors(prompt: EvaluatedPrompt) -> PromptTensors:
    """A prefill in the decode side's terms: layout 0 is the identity, others as they are met."""
    length = prompt.next_position
    specs = [LayoutSpec(kind=PositionKind.IDENTITY, slots=length)]
    maps: list[Tensor] = []
    layer_layouts = []
    for cache in prompt.layer_kv:
        positions_RN = cache.positions_RN
        rows, slots = positions_RN.shape
        if slots == length:
            layer_layouts.append(0)
            continue
        known = next((i for i, seen in enumerate(maps, start=1) if _same(seen, positions_RN)), None)
        if known is None:
            maps.append(positions_RN)
            known = len(maps)
            kind = PositionKind.SHARED if rows == 1 else PositionKind.PER_HEAD
            specs.append(LayoutSpec(kind=kind, slots=slots))
        layer_layouts.append(known)
    return PromptTensors(
        prompt_tokens=length,
        layouts=tuple(specs),
        layer_layouts=tuple(layer_layouts),
        positions=dict(enumerate(maps, start=1)),
        keys_values=[(cache.keys_NGD, cache.values_NGD) for cache in prompt.layer_kv],
    )


def _same(one_RN: Tensor, other_RN: Tensor) -> bool:
    return one_RN.shape == other_RN.shape and torch.equal(one_RN, other_RN)

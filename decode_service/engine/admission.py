"""What may be reserved at all: a request that could never be served is a mistake, not "busy"."""

from dataclasses import dataclass

from decode_service.engine.branches import MOST_TAIL_SLOTS
from decode_service.engine.handoffs import ReserveSpec
from shared.errors import ContextLengthError, InvalidRequestError, ManifestError
from shared.kv.geometry import pages_for
from shared.types.model_identity import ModelIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What this worker has in all."""

    identity: ModelIdentity
    """The model it serves."""
    num_heads: int
    """Query heads of the model."""
    max_model_len: int
    """Longest context in tokens, answer included."""
    whole_layers: int
    """Layers of the front length group."""
    pages_front: int
    """Pages of the whole layers."""
    pages_rest: int
    """Pages of the other layers."""
    slab_bytes: int
    """Bytes of the landing slab."""


@dataclass(frozen=True, slots=True)
class GroupTokens:
    """KV slots of a whole request, growth included, in the two length groups."""

    front: int
    """Slots of each whole layer."""
    rest: int
    """Slots of each other layer."""
    branch: int = 0
    """Slots of a further answer to the same prompt, in every layer."""


def admit(spec: ReserveSpec, capacity: Capacity) -> GroupTokens:
    """Checks that a reservation makes sense and could be granted by an idle worker.

    Raises:
        ManifestError: another model.
        ContextLengthError: the prompt leaves no room for an answer.
        InvalidRequestError: counts that contradict each other, or it can never fit.
    """
    _check_model(spec, capacity)
    _check_counts(spec, capacity)
    if spec.prompt_tokens >= capacity.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {capacity.max_model_len} tokens, answer "
            f"included, but the prompt has {spec.prompt_tokens}; shorten the prompt"
        )
    growth = min(spec.max_new_tokens, capacity.max_model_len - spec.prompt_tokens) - 1
    own = MOST_TAIL_SLOTS + growth if spec.num_branches > 1 else 0
    tokens = GroupTokens(spec.prompt_tokens + growth, spec.kept_tokens + growth, own)
    _check_size(spec, capacity, tokens)
    return tokens


def _check_model(spec: ReserveSpec, capacity: Capacity) -> None:
    differences = capacity.identity.differences(spec.model)
    if differences:
        raise ManifestError(
            f"the prefill worker's model differs ({'; '.join(differences)}): its KV cache means "
            "nothing here; start both workers with the same model and dtype",
            param="model",
        )


def _check_counts(spec: ReserveSpec, capacity: Capacity) -> None:
    checks = (
        (1 <= spec.kept_tokens <= spec.prompt_tokens, "kept_tokens"),
        (0 <= spec.whole_layers <= capacity.identity.num_layers, "whole_layers"),
        (spec.max_new_tokens >= 1, "max_new_tokens"),
        (spec.slab_bytes >= 1, "slab_bytes"),
    )
    for ok, name in checks:
        if not ok:
            raise InvalidRequestError(
                f"a reservation with {name} = {getattr(spec, name)} makes no sense; the prefill "
                "worker must send counts that agree with each other",
                param=name,
            )
    pruned = spec.kept_tokens < spec.prompt_tokens
    if pruned and spec.whole_layers != capacity.whole_layers:
        raise InvalidRequestError(
            f"the prompt keeps {spec.whole_layers} layers whole, the cache of this worker was "
            f"built for {capacity.whole_layers}; give both workers the same profile",
            param="whole_layers",
        )


def _check_size(spec: ReserveSpec, capacity: Capacity, tokens: GroupTokens) -> None:
    if spec.slab_bytes > capacity.slab_bytes:
        raise InvalidRequestError(
            f"the KV cache of the prompt needs {spec.slab_bytes} bytes of landing slab, this "
            f"worker has {capacity.slab_bytes}; raise --slab-bytes or shorten the prompt"
        )
    others = (spec.num_branches - 1) * pages_for(tokens.branch)
    front, rest = pages_for(tokens.front) + others, pages_for(tokens.rest) + others
    has_front = capacity.whole_layers == 0 or front <= capacity.pages_front
    has_rest = capacity.whole_layers == capacity.identity.num_layers or rest <= capacity.pages_rest
    if not (has_front and has_rest):
        fewer = has_front and capacity.pages_rest < capacity.pages_front
        raised = (
            "the pruned layers have the fewer pages by --rest-share or --pages-rest: raise that or "
            "--kv-bytes, shorten the prompt"
            if fewer
            else "raise --kv-bytes, shorten the prompt"
        )
        raise InvalidRequestError(
            f"the request needs {front} and {rest} KV pages in the two length groups, this worker "
            f"has {capacity.pages_front} and {capacity.pages_rest} in all; {raised} or lower "
            "max_tokens" + (" or n" if others else ""),
            param="n" if others else None,
        )

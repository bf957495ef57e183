import pytest

from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.errors import ManifestError
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PositionKind
from shared.types.sampling import SamplingParams, StopConditions
from tests.support.decode_rows import make_cache, make_prompt, place


def test_layers_of_one_group_must_hold_equally_many_slots(tiny_model: Transformer) -> None:
    """A prompt that was split at another layer than this cache is refused, not misread."""
    cache = make_cache(tiny_model)
    pages = cache.reserve(front_tokens=40, rest_tokens=20)
    assert pages is not None
    whole = KvLayout(kind=PositionKind.IDENTITY, slots=40, positions_RN=None)
    short = KvLayout(kind=PositionKind.IDENTITY, slots=20, positions_RN=None)
    with pytest.raises(ManifestError, match=r"\[20, 40\]"):
        PromptKv(
            pages=pages,
            layouts=(whole, short),
            layer_layouts=(0, 0, 0, 1, 1, 1),
            whole_layers=2,
            prompt_tokens=40,
        )


def test_stop_ids_are_banned_before_the_minimum_only(tiny_model: Transformer) -> None:
    prompt, _ = make_prompt(tiny_model, mode="identity", tokens=20, kept=20)
    placed = place(tiny_model, make_cache(tiny_model), prompt, first_token=3, sparsity=None)
    row = Sequence(
        key=HandoffKey("h"),
        prompt=placed.prompt,
        policy=policy_for(None, num_layers=6),
        num_heads=placed.num_heads,
        num_kv_heads=placed.num_kv_heads,
        sampling=SamplingParams(),
        stop=StopConditions(max_tokens=9, min_tokens=2, token_ids=(1, 5)),
        generated=[7],
    )
    assert row.banned_ids() == (1, 5)
    row.generated.append(8)
    assert row.banned_ids() == ()

"""Rotary tables: positions, context length, and what a config.json may say."""

import pytest
import torch

from shared.errors import ModelLoadError
from shared.model.rope import Rope, RopeTable, rotate
from shared.model.rope_config import RopeConfig, RopeKind, rope_from_dict

CPU = torch.device("cpu")


def table(config: RopeConfig, positions: list[int], *, context: int) -> RopeTable:
    rope = Rope(config, head_dim=16, device=CPU)
    return rope.table(torch.tensor(positions), context_tokens=context, dtype=torch.float32)


def test_rotation_keeps_length_and_depends_on_distance_alone() -> None:
    config = RopeConfig()
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)
    scores = [
        (rotate(q, table(config, [a], context=1)) * rotate(k, table(config, [b], context=1))).sum()
        for a, b in ((7, 3), (104, 100))
    ]
    assert torch.allclose(scores[0], scores[1], atol=1e-4)
    assert torch.allclose(rotate(q, table(config, [9], context=1)).norm(), q.norm())


def test_position_zero_is_left_alone() -> None:
    x = torch.randn(1, 3, 16)
    assert torch.equal(rotate(x, table(RopeConfig(), [0], context=1)), x)


def test_dynamic_kind_follows_the_context_length_not_the_positions() -> None:
    config = RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, original_max_position=64)
    short, at_limit, long = (table(config, [5], context=c) for c in (10, 64, 200))
    assert torch.equal(short.cos_TD, at_limit.cos_TD)
    assert not torch.equal(short.cos_TD, long.cos_TD)


@pytest.mark.parametrize("kind", [RopeKind.LINEAR, RopeKind.YARN, RopeKind.LLAMA3])
def test_other_kinds_ignore_the_context_length(kind: RopeKind) -> None:
    config = RopeConfig(kind=kind, factor=2.0, original_max_position=64)
    assert torch.equal(
        table(config, [70], context=71).cos_TD, table(config, [70], context=900).cos_TD
    )


@pytest.mark.parametrize("kind", list(RopeKind))
def test_a_prompts_table_is_that_of_its_positions_whatever_came_before(kind: RopeKind) -> None:
    config = RopeConfig(kind=kind, factor=2.0, original_max_position=64)
    kept = Rope(config, head_dim=16, device=CPU)
    for tokens in (70, 1, 300, 2048, 2049, 5000, 70):
        for dtype in (torch.float32, torch.bfloat16):
            found = kept.prompt_table(tokens, dtype=dtype)
            fresh = Rope(config, head_dim=16, device=CPU)
            wanted = fresh.table(torch.arange(tokens), context_tokens=tokens, dtype=dtype)
            assert torch.equal(found.cos_TD, wanted.cos_TD)
            assert torch.equal(found.sin_TD, wanted.sin_TD)


def test_a_prompts_table_is_made_again_only_for_a_longer_one() -> None:
    rope = Rope(RopeConfig(), head_dim=16, device=CPU)
    first = rope.prompt_table(3000, dtype=torch.float32)
    assert rope.prompt_table(4096, dtype=torch.float32).cos_TD.data_ptr() == first.cos_TD.data_ptr()
    longer = rope.prompt_table(4097, dtype=torch.float32)
    assert longer.cos_TD.data_ptr() != first.cos_TD.data_ptr()
    assert rope.prompt_table(5, dtype=torch.float32).sin_TD.data_ptr() == longer.sin_TD.data_ptr()


def test_rows_of_a_table() -> None:
    whole = table(RopeConfig(), [0, 4, 9], context=10)
    assert torch.equal(whole.rows(torch.tensor([2])).cos_TD, whole.cos_TD[2:])
    assert whole.rows(slice(1, 3)).sin_TD.shape == (2, 16)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope kind 'longrope' is not supported"),
        ({"rope_type": "linear"}, "needs 'factor'"),
        ({"rope_type": "linear", "factor": 0.5}, "at least 1"),
        ({"rope_type": "llama3", "factor": 8.0}, "needs 'original_max_position_embeddings'"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "rotates only 0.5"),
    ],
)
def test_bad_parameters_are_named(params: dict[str, object], text: str) -> None:
    with pytest.raises(ModelLoadError, match=text):
        rope_from_dict({"rope_parameters": params}, max_position=64)


def test_old_and_new_spelling_are_read_alike() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}
    assert rope_from_dict(old, max_position=64) == rope_from_dict(new, max_position=64)


def test_yarn_takes_its_factor_from_the_lengths_when_none_is_given() -> None:
    params = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    assert rope_from_dict({"rope_parameters": params}, max_position=256).factor == 4.0
    given = {**params, "factor": 4.0, "attention_factor": 1.25}
    assert rope_from_dict({"rope_parameters": given}, max_position=64).attention_factor == 1.25


@pytest.mark.parametrize("kind", list(RopeKind))
def test_parameters_survive_a_round_trip(kind: RopeKind) -> None:
    plain = kind is RopeKind.DEFAULT
    config = RopeConfig(
        kind=kind, factor=1.0 if plain else 4.0, original_max_position=0 if plain else 64
    )
    assert rope_from_dict({"rope_parameters": config.to_dict()}, max_position=64) == config
    assert f"kind={kind.value}" in config.canonical()

"""Decisions about a prompt."""

from dataclasses import replace
from itertools import pairwise

import pytest

from prefill_service.engine.plan import PromptPlan, plan_prompt
from shared.errors import ConfigError, ContextLengthError, InvalidRequestError
from shared.kv.geometry import KvGeometry
from shared.model.random import random_config
from shared.types.kv_manifest import PositionKind
from shared.types.methods import KvSelect, PruningParams
from shared.types.options import Mode, RequestOptions

PARAMS = PruningParams(pruning_layer=3, deferred_layers=2, bypass_below=64)
GEOMETRY = KvGeometry(num_layers=6, num_kv_heads=2, head_dim=16)


def plan(
    tokens: int = 100, params: PruningParams = PARAMS, options: RequestOptions | None = None
) -> PromptPlan:
    return plan_prompt(
        config=random_config("llama"),
        geometry=GEOMETRY,
        params=params,
        options=options or RequestOptions(),
        prompt_tokens=tokens,
    )


def test_by_profile() -> None:
    ours = plan()
    assert ours.summary.pruned
    assert ours.summary.reason == "profile"
    assert ours.summary.kept_tokens == 20
    assert ours.ranker.name == "claa"
    assert ours.held_layers == range(2, 4)
    assert ours.slab.layer_layouts[:2] == (0, 0)


@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.PRUNE, Mode.BOTH])
def test_modes_that_prune(mode: Mode) -> None:
    assert plan(options=RequestOptions(mode=mode)).summary.pruned


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.SPARSE])
def test_modes_that_do_not(mode: Mode) -> None:
    ours = plan(options=RequestOptions(mode=mode))
    assert (ours.summary.pruned, ours.summary.reason) == (False, "mode_full")
    assert ours.summary.kept_tokens == 100
    assert ours.ranker.name == "full"
    assert ours.held_layers == range(0)
    assert {spec.kind for spec in ours.slab.layouts} == {PositionKind.IDENTITY}


def test_overrides() -> None:
    ours = plan(options=RequestOptions(keep_rate=0.5))
    assert (ours.summary.reason, ours.summary.kept_tokens) == ("request", 50)
    assert ours.summary.keep_rate == 0.5
    ours = plan(options=RequestOptions(min_keep=33))
    assert (ours.summary.reason, ours.summary.kept_tokens) == ("request", 33)


def test_reasons_to_keep_all() -> None:
    assert plan(options=RequestOptions(keep_rate=1.0)).summary.reason == "keep_all"
    assert plan(63).summary.reason == "short_prompt"
    assert plan(64).summary.pruned
    assert plan(9, replace(PARAMS, bypass_below=0)).summary.reason == "short_prompt"
    assert plan(10, replace(PARAMS, bypass_below=0)).summary.pruned
    assert plan(100, replace(PARAMS, min_keep=100)).summary.reason == "short_prompt"


def test_window_of_a_short_prompt() -> None:
    assert plan(3).window_tokens == 3
    assert plan(100).window_tokens == 8


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("lp", "m"), [(0, 0), (0, 4), (3, 2), (5, 2), (5, 9), (1, 4), (4, 0)])
def test_layouts_follow_what_layers_hold(lp: int, m: int, kv_select: KvSelect) -> None:
    params = replace(PARAMS, pruning_layer=lp, deferred_layers=m, kv_select=kv_select)
    ours = plan(params=params)
    for layer in range(6):
        whole = layer <= lp and layer not in ours.held_layers
        kind = ours.slab.layouts[ours.slab.layer_layouts[layer]].kind
        assert (kind is PositionKind.IDENTITY) == whole
        assert ours.slab.slots_of(layer) == (100 if whole else 20)
    assert all(a.offset + a.length <= b.offset for a, b in pairwise(ours.slab.segments))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (RequestOptions(keep_rate=0.0), "tandem.keep_rate"),
        (RequestOptions(keep_rate=1.5), "tandem.keep_rate"),
        (RequestOptions(keep_rate=float("nan")), "tandem.keep_rate"),
        (RequestOptions(min_keep=-1), "tandem.min_keep"),
    ],
)
def test_overrides_out_of_range(options: RequestOptions, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(options=options)
    assert caught.value.param == param


def test_prompt_out_of_range() -> None:
    with pytest.raises(InvalidRequestError, match="no tokens"):
        plan(0)
    assert plan(1024).prompt_tokens == 1024
    with pytest.raises(ContextLengthError, match="1024"):
        plan(1025)


def test_profile_of_another_model() -> None:
    with pytest.raises(ConfigError, match="another model"):
        plan(params=replace(PARAMS, pruning_layer=6))

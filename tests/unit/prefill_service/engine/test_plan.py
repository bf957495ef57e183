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
from shared.types.options import Mode, RequestOptions, TokenRange

PARAMS = PruningParams(pruning_layer=3, deferred_layers=2, bypass_below=64)
GEOMETRY = KvGeometry(num_layers=6, num_kv_heads=2, head_dim=16)


def plan(
    tokens: int = 100,
    params: PruningParams = PARAMS,
    options: RequestOptions | None = None,
    *,
    earlier: int = 0,
) -> PromptPlan:
    return plan_prompt(
        config=random_config("llama"),
        geometry=GEOMETRY,
        params=params,
        options=options or RequestOptions(),
        prompt_tokens=tokens + earlier,
        earlier_tokens=earlier,
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


def test_protected_positions_end_where_the_window_begins() -> None:
    ranges = (TokenRange(3, 6), TokenRange(5, 7), TokenRange(90, 100))
    ours = plan(options=RequestOptions(protect=ranges))
    assert ours.protected == (3, 4, 5, 6, 90, 91)
    assert (ours.summary.reason, ours.summary.protected_tokens) == ("request", 6)
    assert ours.summary.kept_tokens == 20
    assert plan().protected == ()


@pytest.mark.parametrize(
    ("tokens", "reason"), [(TokenRange(0, 12), None), (TokenRange(1, 13), "12 places")]
)
def test_protected_tokens_must_fit_beside_the_window(
    tokens: TokenRange, reason: str | None
) -> None:
    options = RequestOptions(protect=(tokens,))
    if reason is None:
        assert len(plan(options=options).protected) == 12
        return
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        plan(options=options)
    assert caught.value.param == "tandem.protect"


def test_nothing_is_protected_where_nothing_is_dropped() -> None:
    everything = (TokenRange(0, 100),)
    ours = plan(options=RequestOptions(mode=Mode.FULL, protect=everything))
    assert (ours.protected, ours.summary.protected_tokens) == ((), 0)
    with pytest.raises(InvalidRequestError, match="ends after the prompt"):
        plan(options=RequestOptions(mode=Mode.FULL, protect=(TokenRange(0, 101),)))


def test_a_request_may_widen_the_window() -> None:
    ours = plan(options=RequestOptions(observation_window=30))
    assert (ours.window_tokens, ours.summary.observation_window) == (30, 30)
    assert (ours.summary.kept_tokens, ours.summary.reason) == (31, "request")


def test_mass_plans_for_its_upper_bound() -> None:
    ours = plan(options=RequestOptions(mass=0.9, max_rate=0.4))
    assert (ours.summary.kept_tokens, ours.summary.mass) == (40, 0.9)
    profile = replace(PARAMS, mass=0.8, keep_rate=1.0)
    assert plan(params=profile).summary.kept_tokens == 50
    assert plan(params=profile, options=RequestOptions(keep_rate=0.3)).summary.mass is None
    assert plan(options=RequestOptions(mode=Mode.FULL, mass=0.9)).summary.mass is None


@pytest.mark.parametrize(
    ("options", "param"),
    [
        (RequestOptions(min_rate=0.1), "tandem.mass"),
        (RequestOptions(mass=0.9, min_rate=0.7), "tandem.mass"),
    ],
)
def test_bounds_that_mean_nothing(options: RequestOptions, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        plan(options=options)
    assert caught.value.param == param


def test_mass_needs_a_method_that_scores_layers() -> None:
    snapkv = replace(PARAMS, ranker="snapkv")
    with pytest.raises(InvalidRequestError, match="snapkv"):
        plan(params=snapkv, options=RequestOptions(mass=0.9))
    with pytest.raises(ConfigError, match="snapkv"):
        plan(params=replace(snapkv, mass=0.9))


def test_a_requests_rate_bounds_the_caches_too() -> None:
    profile = replace(PARAMS, kv_rate=0.1)
    assert plan(params=profile).summary.slots == 10
    for options, slots in (
        (RequestOptions(keep_rate=0.3), 10),
        (RequestOptions(keep_rate=0.09), 9),
        (RequestOptions(mass=0.9), 50),
    ):
        assert plan(params=profile, options=options).summary.slots == slots


@pytest.mark.parametrize("earlier", [1, 5, 8, 9, 300])
def test_an_answer_so_far_is_kept_whole_and_changes_nothing_for_the_prompt(earlier: int) -> None:
    options = RequestOptions(protect=(TokenRange(40, 46), TokenRange(93, 100)))
    for params in (PARAMS, replace(PARAMS, kv_rate=0.18)):
        alone = plan(params=params, options=options).summary
        ours = plan(params=params, options=options, earlier=earlier)
        assert ours.summary.reason == alone.reason
        assert ours.summary.kept_tokens == alone.kept_tokens + earlier
        assert ours.summary.slots == alone.slots + earlier
        window = range(100 + earlier - params.observation_window, 100 + earlier)
        assert set(range(100, 100 + earlier)) <= {*ours.protected, *window}


def test_an_answer_so_far_does_not_make_a_short_prompt_long() -> None:
    assert not plan(63).summary.pruned
    ours = plan(63, earlier=500)
    assert (ours.summary.pruned, ours.summary.reason) == (False, "short_prompt")
    assert ours.summary.kept_tokens == 563


def test_no_range_of_an_answer_so_far_can_be_protected() -> None:
    with pytest.raises(InvalidRequestError, match="has 100 tokens"):
        plan(options=RequestOptions(protect=(TokenRange(95, 101),)), earlier=20)

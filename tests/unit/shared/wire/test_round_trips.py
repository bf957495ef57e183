import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shared.errors
from decode_service.engine.grant_check import TOKEN_REFUSED
from protos.tandem.v1 import common_pb2
from shared.errors import HandoffError, InvalidRequestError, ManifestError, TandemError
from shared.grammar.compiler import INVALID
from shared.grammar.matcher import TOO_COMPLEX
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import (
    KvManifest,
    LayoutSpec,
    PositionKind,
    PruningSummary,
    Segment,
    SegmentCheck,
    SegmentKind,
)
from shared.types.methods import Aggregation, KvSelect, PageHeads, PageLayout
from shared.types.model_identity import ModelIdentity
from shared.types.options import MAX_OBSERVATION_WINDOW, Mode, RequestOptions, TokenRange
from shared.types.page_policies import PagePolicyName
from shared.types.page_summary import PageSummary
from shared.types.sampling import FinishReason, SampledToken, SamplingParams, StopConditions
from shared.wire.errors import error_from_pb, error_to_pb
from shared.wire.identity import handoff_from_pb
from shared.wire.manifest import manifest_from_pb, manifest_to_pb
from shared.wire.options import options_from_pb, options_to_pb
from shared.wire.pages import pages_from_pb, pages_to_pb
from shared.wire.sampling import (
    finish_from_pb,
    finish_to_pb,
    sampling_from_pb,
    sampling_to_pb,
    stop_from_pb,
    stop_to_pb,
    token_from_pb,
    token_to_pb,
)

NEWER = cast("Any", 77)  # an enum number that this version does not know

f32 = st.floats(-1e4, 0, width=32)
ids = st.integers(0, 2**32 - 1)
tokens = st.builds(
    SampledToken,
    token_id=ids,
    logprob=st.none() | f32,
    top=st.lists(st.tuples(ids, f32), max_size=3).map(tuple),
)
samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 1000),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 10, exclude_min=True),
    seed=st.integers(0, 2**64 - 1),
    logit_bias=st.lists(st.tuples(ids, st.floats(-100, 100)), max_size=3).map(tuple),
    logprobs=st.none() | st.integers(0, 20),
)
options = (
    st.builds(
        RequestOptions,
        mode=st.sampled_from(Mode),
        keep_rate=st.none() | st.floats(0, 1, exclude_min=True),
        min_keep=st.none() | st.integers(0, 2**31),
        page_budget=st.none() | st.integers(0, 2**31),
        recency_pages=st.none() | st.integers(0, 2**31),
        protect=st.lists(st.tuples(st.integers(0, 2**31), st.integers(1, 99)), max_size=4).map(
            lambda pairs: tuple(TokenRange(start, start + size) for start, size in pairs)
        ),
        observation_window=st.none() | st.integers(1, MAX_OBSERVATION_WINDOW),
        min_rate=st.none() | st.floats(0, 0.5, exclude_min=True),
        max_rate=st.none() | st.floats(0.5, 1),
        page_policy=st.none() | st.just(PagePolicyName.DELTA),
        page_layout=st.none() | st.sampled_from(PageLayout),
        page_heads=st.none() | st.sampled_from(PageHeads),
        page_refresh=st.none() | st.integers(1, 2**31),
        page_mass=st.none() | st.floats(0, 1, exclude_min=True),
        replay=st.booleans(),
    )
    | st.builds(RequestOptions, page_policy=st.sampled_from(PagePolicyName))
    | st.builds(
        RequestOptions, mass=st.floats(0, 1, exclude_min=True), min_rate=st.none() | st.just(0.1)
    )
)
segments = st.builds(
    Segment,
    kind=st.sampled_from(SegmentKind),
    index=st.integers(0, 100),
    offset=st.integers(0, 2**40),
    length=st.integers(0, 2**40),
    crc32=ids,
    sum64=st.integers(0, 2**64 - 1),
)
manifests = st.builds(
    KvManifest,
    handoff=st.builds(HandoffKey, st.text(min_size=1, max_size=128), st.integers(1, 9)),
    model=st.builds(
        ModelIdentity,
        name=st.text(),
        model_hash=st.text(),
        dtype=st.just("float32"),
        num_layers=st.integers(1, 99),
        num_kv_heads=st.integers(1, 99),
        head_dim=st.integers(1, 256),
        rope=st.text(),
    ),
    prompt_tokens=ids,
    next_position=ids,
    prompt_hash=st.text(),
    pruning=st.builds(
        PruningSummary,
        pruned=st.booleans(),
        reason=st.text(),
        pruning_layer=st.integers(0, 99),
        aggregation_window=st.integers(0, 99),
        deferred_layers=st.integers(0, 99),
        observation_window=st.integers(0, 99),
        aggregation=st.sampled_from(Aggregation),
        kv_select=st.sampled_from(KvSelect),
        keep_rate=st.floats(0, 1),
        kept_tokens=ids,
        protected_tokens=ids,
        mass=st.none() | st.floats(0, 1, exclude_min=True),
    ),
    layouts=st.lists(
        st.builds(LayoutSpec, kind=st.sampled_from(PositionKind), slots=ids), max_size=3
    ).map(tuple),
    layer_layouts=st.lists(st.integers(0, 99), max_size=5).map(tuple),
    segments=st.lists(segments, max_size=3).map(tuple),
    first_tokens=st.lists(tokens, max_size=2).map(tuple),
    draws=st.integers(0, 9),
    check=st.sampled_from(SegmentCheck),
)


@given(samplings)
def test_sampling_survives(params):
    assert sampling_from_pb(sampling_to_pb(params)) == params


@given(options)
def test_options_survive(value):
    assert options_from_pb(options_to_pb(value)) == value


@given(
    st.builds(
        PageSummary,
        policy=st.text(),
        page_budget=st.none() | ids,
        recency_pages=st.none() | ids,
        layout=st.none() | st.text(),
        heads=st.none() | st.text(),
        refresh_every=st.none() | ids,
        mass=st.none() | st.floats(0, 1),
    )
)
def test_page_summaries_survive(value):
    assert pages_from_pb(pages_to_pb(value)) == value


@pytest.mark.parametrize("field", ["page_policy", "page_layout", "page_heads"])
@pytest.mark.parametrize("text", ["", "Delta", "x" * 99])
def test_an_unknown_choice_is_refused_by_name_with_the_known_ones(field, text):
    message = common_pb2.RequestOptions(**{field: text})
    with pytest.raises(InvalidRequestError, match=r"is unknown; give one of [a-z_]+, ") as caught:
        options_from_pb(message)
    assert caught.value.param == f"tandem.{field}"
    assert len(caught.value.message) < 250


@given(tokens)
def test_tokens_survive(value):
    assert token_from_pb(token_to_pb(value)) == value


@given(manifests)
def test_manifests_survive(value):
    assert manifest_from_pb(manifest_to_pb(value)) == value


@given(
    maximum=st.integers(1, 2**31),
    ids_=st.lists(ids).map(tuple),
    strings=st.lists(st.text(min_size=1), max_size=16).map(tuple),
)
def test_stop_conditions_survive(maximum, ids_, strings):
    value = StopConditions(max_tokens=maximum, min_tokens=1, token_ids=ids_, strings=strings)
    assert stop_from_pb(stop_to_pb(value)) == value


@pytest.mark.parametrize("reason", FinishReason)
def test_finish_reasons_survive(reason):
    assert finish_from_pb(finish_to_pb(reason)) is reason


def _error_classes(cls: type[TandemError] = TandemError):
    yield cls
    for sub in cls.__subclasses__():
        yield from _error_classes(sub)


@pytest.mark.parametrize("cls", sorted(set(_error_classes()), key=str))
def test_errors_survive(cls):
    error = cls("what, why, what to do", param="a.b", retry_after_s=1.5)
    back = error_from_pb(error_to_pb(error))
    assert (back.message, back.error_code, back.param, back.retry_after_s) == (
        error.message,
        error.error_code,
        error.param,
        1.5,
    )
    assert issubclass(cls, type(back)) or type(back) is shared.errors.InternalError


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (INVALID, InvalidRequestError),
        (TOO_COMPLEX, InvalidRequestError),
        (TOKEN_REFUSED, HandoffError),
    ],
)
def test_codes_of_their_own_keep_their_class_inside_a_stream(code, cls):
    """A grammar that a step cannot follow is the request's fault, not a defect of the worker."""
    back = error_from_pb(error_to_pb(cls("what, why, what to do", code=code)))
    assert type(back) is cls
    assert back.error_code == code


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 2.5])
def test_bad_temperatures_are_refused(bad):
    with pytest.raises(InvalidRequestError) as caught:
        sampling_from_pb(common_pb2.SamplingParams(temperature=bad))
    assert caught.value.param == "temperature"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (common_pb2.SamplingParams(top_p=math.nan), "top_p"),
        (common_pb2.SamplingParams(min_p=1.5), "min_p"),
        (common_pb2.SamplingParams(presence_penalty=3), "presence_penalty"),
        (common_pb2.SamplingParams(repetition_penalty=-1), "repetition_penalty"),
        (common_pb2.SamplingParams(logprobs=21), "logprobs"),
        (
            common_pb2.SamplingParams(logit_bias=[common_pb2.LogitBias(token_id=1, bias=math.inf)]),
            "logit_bias",
        ),
    ],
)
def test_bad_sampling_names_its_field(message, param):
    with pytest.raises(InvalidRequestError) as caught:
        sampling_from_pb(message)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "message",
    [
        common_pb2.StopConditions(),
        common_pb2.StopConditions(max_tokens=1, min_tokens=2),
        common_pb2.StopConditions(max_tokens=1, strings=[""]),
        common_pb2.StopConditions(max_tokens=1, strings=["x"] * 17),
    ],
)
def test_bad_stop_conditions_are_refused(message):
    with pytest.raises(InvalidRequestError):
        stop_from_pb(message)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_bad_keep_rates_are_refused(rate):
    with pytest.raises(InvalidRequestError) as caught:
        options_from_pb(common_pb2.RequestOptions(keep_rate=rate))
    assert caught.value.param == "tandem.keep_rate"


def test_values_of_a_newer_protocol_are_refused():
    with pytest.raises(InvalidRequestError, match="newer protocol"):
        options_from_pb(common_pb2.RequestOptions(mode=NEWER))
    with pytest.raises(InvalidRequestError, match="newer protocol"):
        finish_from_pb(NEWER)


@pytest.mark.parametrize("key", [("", 1), ("x" * 129, 1), ("x", 0)])
def test_unnamed_handoffs_are_refused(key):
    with pytest.raises(InvalidRequestError):
        handoff_from_pb(common_pb2.HandoffKey(handoff_id=key[0], attempt=key[1]))


def test_a_manifest_of_before_the_check_is_summed_by_crc32_and_a_newer_check_is_refused():
    from protos.tandem.v1 import decode_pb2

    message = decode_pb2.Manifest(
        handoff=common_pb2.HandoffKey(handoff_id="h", attempt=1),
        pruning=common_pb2.PruningSummary(aggregation="sum_max", kv_select="head"),
    )
    assert manifest_from_pb(message).check is SegmentCheck.CRC32
    message.check = NEWER
    with pytest.raises(ManifestError, match=r"kind 77.*upgrade the older one"):
        manifest_from_pb(message)


def test_unknown_manifest_kinds_are_refused():
    from protos.tandem.v1 import decode_pb2

    message = decode_pb2.Manifest(
        handoff=common_pb2.HandoffKey(handoff_id="h", attempt=1),
        pruning=common_pb2.PruningSummary(aggregation="sum_max", kv_select="head"),
        layouts=[decode_pb2.Layout(kind=NEWER)],
    )
    with pytest.raises(ManifestError, match="kind 77"):
        manifest_from_pb(message)
    message.pruning.aggregation = "later"
    with pytest.raises(ManifestError, match="later"):
        manifest_from_pb(message)

"""What may be reserved at all."""

from dataclasses import replace

import pytest

from decode_service.engine.admission import GroupTokens, admit
from decode_service.engine.handoffs import Busy, BusyReason, Reservation, ReserveSpec
from shared.errors import ContextLengthError, InvalidRequestError, ManifestError
from shared.types.handoff import HandoffKey
from tests.support.decode_parts import IDENTITY, WHOLE_LAYERS, make_parts, reserve_spec

SPEC = reserve_spec(HandoffKey("h"))
CAPACITY = make_parts().capacity


def test_growth_is_reserved_up_front() -> None:
    assert admit(SPEC, CAPACITY) == GroupTokens(27, 27)
    pruned = replace(SPEC, kept_tokens=5, whole_layers=WHOLE_LAYERS)
    assert admit(pruned, CAPACITY) == GroupTokens(27, 12)


def test_growth_ends_with_the_context() -> None:
    assert admit(replace(SPEC, max_new_tokens=1000), CAPACITY) == GroupTokens(63, 63)


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"num_branches": 40}, InvalidRequestError, "n"),
        ({"kept_tokens": 0}, InvalidRequestError, "kept_tokens"),
        ({"kept_tokens": 21}, InvalidRequestError, "kept_tokens"),
        ({"whole_layers": 5}, InvalidRequestError, "whole_layers"),
        ({"whole_layers": 3, "kept_tokens": 5}, InvalidRequestError, "whole_layers"),
        ({"max_new_tokens": 0}, InvalidRequestError, "max_new_tokens"),
        ({"slab_bytes": 0}, InvalidRequestError, "slab_bytes"),
        ({"model": replace(IDENTITY, dtype="bfloat16")}, ManifestError, "model"),
    ],
)
def test_refusals_name_the_field(
    change: dict[str, object], error: type[Exception], names: str
) -> None:
    with pytest.raises(error) as caught:
        admit(replace(SPEC, **change), CAPACITY)  # type: ignore[arg-type]
    assert caught.value.param == names  # type: ignore[attr-defined]


def test_every_identity_field_is_compared_and_named() -> None:
    changed = {
        "model_hash": "f" * 64,
        "dtype": "float16",
        "num_layers": 5,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rope": "yarn",
    }
    for field, value in changed.items():
        with pytest.raises(ManifestError, match=field):
            admit(replace(SPEC, model=replace(IDENTITY, **{field: value})), CAPACITY)  # type: ignore[arg-type]
    assert admit(replace(SPEC, model=replace(IDENTITY, name="other")), CAPACITY)


def test_overlong_prompt_is_a_context_error() -> None:
    admit(reserve_spec(HandoffKey("h"), prompt_tokens=63), CAPACITY)
    with pytest.raises(ContextLengthError):
        admit(reserve_spec(HandoffKey("h"), prompt_tokens=64), CAPACITY)


@pytest.mark.parametrize("change", [{"slab_bytes": 1 << 20}, {"prompt_tokens": 60}])
def test_what_never_fits_is_not_busy(change: dict[str, int]) -> None:
    small = replace(CAPACITY, pages_front=2, pages_rest=2)
    with pytest.raises(InvalidRequestError):
        admit(replace(SPEC, **change), small)  # type: ignore[arg-type]


def test_too_few_pages_for_pruned_layers_name_their_setting() -> None:
    small = replace(CAPACITY, pages_rest=1)
    with pytest.raises(InvalidRequestError, match=r"--rest-share or --pages-rest: raise that"):
        admit(SPEC, small)
    with pytest.raises(InvalidRequestError, match=r"in all; raise --kv-bytes, shorten"):
        admit(SPEC, replace(CAPACITY, pages_front=1, pages_rest=1))


def reserve(parts: object, spec: ReserveSpec) -> Reservation | Busy:
    return parts.table.reserve(spec)  # type: ignore[attr-defined,no-any-return]


def test_busy_reasons() -> None:
    parts = make_parts(slab_bytes=4096)
    reserve(parts, SPEC)
    second = replace(SPEC, handoff=HandoffKey("second"))
    answer = reserve(parts, second)
    assert isinstance(answer, Busy)
    assert answer.reason is BusyReason.SLAB_FULL

    parts = make_parts(pages=2)
    reserve(parts, SPEC)
    answer = reserve(parts, second)
    assert isinstance(answer, Busy)
    assert answer.reason is BusyReason.PAGES_FULL
    assert parts.slab.num_leases == 1, "the slot of the refused one was given back"

    parts.table.draining = True
    answer = reserve(parts, second)
    assert isinstance(answer, Busy)
    assert answer.reason is BusyReason.DRAINING
    assert isinstance(reserve(parts, SPEC), Reservation), "a repeated question keeps its grant"

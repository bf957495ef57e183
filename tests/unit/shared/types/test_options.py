"""Overrides of pruning: what is refused before any prompt is known."""

import math
from dataclasses import replace
from typing import Any

import pytest

from shared.errors import InvalidRequestError
from shared.types.options import (
    MAX_COUNT,
    MAX_OBSERVATION_WINDOW,
    MAX_PROTECTED_RANGES,
    Mode,
    RequestOptions,
    TokenRange,
)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"keep_rate": 0.0}, "tandem.keep_rate"),
        ({"keep_rate": math.nan}, "tandem.keep_rate"),
        ({"mass": 1.01}, "tandem.mass"),
        ({"mass": 0.5, "keep_rate": 0.5}, "tandem.mass"),
        ({"min_rate": -0.1}, "tandem.min_rate"),
        ({"max_rate": math.inf}, "tandem.max_rate"),
        ({"min_rate": 0.6, "max_rate": 0.5}, "tandem.min_rate"),
        ({"min_keep": -1}, "tandem.min_keep"),
        ({"min_keep": MAX_COUNT + 1}, "tandem.min_keep"),
        ({"page_budget": 2**40}, "tandem.page_budget"),
        ({"recency_pages": -1}, "tandem.recency_pages"),
        ({"page_refresh": 0}, "tandem.page_refresh"),
        ({"page_refresh": 2**40}, "tandem.page_refresh"),
        ({"protect": (TokenRange(0, MAX_COUNT + 1),)}, "tandem.protect"),
        ({"observation_window": 0}, "tandem.window"),
        ({"observation_window": MAX_OBSERVATION_WINDOW + 1}, "tandem.window"),
        ({"protect": (TokenRange(3, 3),)}, "tandem.protect"),
        ({"protect": (TokenRange(-1, 3),)}, "tandem.protect"),
        ({"protect": (TokenRange(0, 1),) * (MAX_PROTECTED_RANGES + 1)}, "tandem.protect"),
    ],
)
def test_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        RequestOptions(**fields).check_pruning()
    assert caught.value.param == param


def test_what_is_in_range_passes() -> None:
    options = RequestOptions(
        protect=(TokenRange(0, 9), TokenRange(5, 7)), observation_window=1, mass=1.0, min_rate=0.1
    )
    options.check_pruning()
    replace(options, mass=None, keep_rate=1.0, min_keep=0).check_pruning()


@pytest.mark.parametrize(
    "fields",
    [
        {"keep_rate": 0.5},
        {"min_keep": 0},
        {"observation_window": 9},
        {"mass": 0.5},
        {"min_rate": 0.1},
        {"max_rate": 0.5},
        {"protect": (TokenRange(0, 1),)},
    ],
)
def test_what_changes_pruning(fields: dict[str, Any]) -> None:
    assert RequestOptions(**fields).changes_pruning
    assert not RequestOptions(mode=Mode.PRUNE, page_budget=9).changes_pruning

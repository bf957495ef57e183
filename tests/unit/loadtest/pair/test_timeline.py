"""The picture of one request, from the report of one that was traced."""

from typing import Any

import numpy as np
import pytest

from loadtest.figures import png
from loadtest.pair.timeline import timeline_figure
from shared.errors import InvalidRequestError


def traced() -> dict[str, Any]:
    blocks = [
        {"layer": layer, "first_slot": slot, "slots": 50, "ms": 10 * layer + slot / 10}
        for layer in range(4)
        for slot in (0, 50)
    ]
    pushes = [{"bytes": 100, "start_ms": block["ms"] + 1, "ms": 2.0} for block in blocks]
    handoff = {
        "computed": blocks, "pushed": pushes, "left_out": 0,
        "computed_ms": 36.0, "sealed_ms": 39.0, "adopted_ms": 41.5,
    }  # fmt: skip
    bars = [
        ("gateway", "tokenize", 0.0, 1.0), ("prefill", "prefill_queue", 1.0, 2.0),
        ("prefill", "prefill", 3.0, 36.0), ("transfer", "transfer", 39.0, 5.5),
        ("decode", "first_decode", 45.0, 5.0), ("decode", "stream", 50.0, 400.0),
    ]  # fmt: skip
    waterfall = [
        {"hop": hop, "phase": phase, "start_ms": start, "ms": ms} for hop, phase, start, ms in bars
    ]
    return {
        "kv_bytes": 800,
        "transport": "nixl",
        "trace": {"waterfall": waterfall, "ttft_ms": 40.0, "prompt": {"handoff": handoff}},
    }


def test_lanes_shares_and_moments_are_drawn() -> None:
    figure = timeline_figure(traced(), title="CLAA 10 %, 100 tokens")
    lanes, shares = figure.axes
    assert "CLAA 10 %, 100 tokens: first token after 40.0 ms" in lanes.get_title()
    assert "5.50 ms of it after the last computation" in lanes.get_title()
    assert [tick.get_text() for tick in lanes.get_yticklabels()] == [
        "decode", "transfer", "prefill", "gateway",
    ]  # fmt: skip
    computed, pushed, *moments = shares.get_lines()
    assert np.asarray(computed.get_ydata())[::4].tolist() == [0.0, 0.5, 1.0]
    first = np.asarray(computed.get_xdata())[0]
    assert first == 3.0, "since the request arrived, not since the computation"
    assert np.asarray(pushed.get_ydata())[-1] == 1.0
    assert [np.asarray(line.get_xdata())[0] for line in moments] == [39.0, 40.0, 44.5]
    assert shares.get_xlim()[1] < 100, "the stream goes on beyond the picture"
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("missing", ["trace", "prompt", "handoff", "computed", "prefill"])
def test_what_was_not_traced_is_not_drawn(missing: str) -> None:
    report = traced()
    trace = report["trace"]
    if missing == "trace":
        del report["trace"]
    elif missing == "prompt":
        trace["prompt"] = None
    elif missing == "handoff":
        trace["prompt"]["handoff"] = None
    elif missing == "computed":
        trace["prompt"]["handoff"]["computed"] = []
    else:
        trace["waterfall"] = [b for b in trace["waterfall"] if b["phase"] != "prefill"]
    with pytest.raises(InvalidRequestError, match="trace"):
        timeline_figure(report, title="")

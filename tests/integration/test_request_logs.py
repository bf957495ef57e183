"""Log lines of one request in every role: one request id, one trace id, nobody's words."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from shared.telemetry.logs import configure_logging
from tests.support.decode_server import write_profile
from tests.support.full_stack import running_stack

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SECRET = "Xylophones are my secret. "


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    written = io.StringIO()
    configure_logging(role="all", log_format="json", stream=written)
    yield written
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_one_request_is_found_in_every_role(
    tiny_model_dir: Path, tmp_path: Path, stream: io.StringIO
) -> None:
    async with running_stack(tiny_model_dir, write_profile(tmp_path)) as stack:
        for number, trace in ((1, TRACE), (2, "f" * 32)):
            response = await stack.http.post(
                "/v1/completions",
                json={"prompt": SECRET * 4, "max_tokens": 5, "ignore_eos": True},
                headers={
                    "x-request-id": f"find-me-{number}",
                    "traceparent": f"00-{trace}-00f067aa0ba902b7-00",
                },
            )
            assert response.status_code == 200
    lines = lines_of(stream)
    for event in ("prompt sealed", "answer ended", "request done"):
        first, second = [line for line in lines if line["event"] == event]
        assert (first["request_id"], first["trace_id"]) == ("find-me-1", TRACE)
        assert (second["request_id"], second["trace_id"]) == ("find-me-2", "f" * 32)
    assert "ylophone" not in stream.getvalue()
    started = [line for line in lines if line["event"] in {"ready", "gateway ready"}]
    assert started
    assert all("trace_id" not in line for line in started)


async def test_a_request_without_a_trace_gets_one_for_all_roles(
    tiny_model_dir: Path, tmp_path: Path, stream: io.StringIO
) -> None:
    async with running_stack(tiny_model_dir, write_profile(tmp_path)) as stack:
        await stack.http.post(
            "/v1/completions", json={"prompt": SECRET, "max_tokens": 3, "ignore_eos": True}
        )
    lines = [line for line in lines_of(stream) if "trace_id" in line]
    events = {line["event"] for line in lines}
    assert {"prompt sealed", "answer ended", "request done"} <= events
    assert len({line["trace_id"] for line in lines}) == 1
    assert len({line["request_id"] for line in lines}) == 1

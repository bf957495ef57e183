"""Arithmetic, stream reading and settings of the gateway's benchmark."""

import asyncio
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.gateway_cost import arrivals, throughput
from loadtest.gateway_cost.arrivals import FirstTokens, poisson_moments
from loadtest.gateway_cost.client import Connection, Exchange, chat_request, read_answer
from loadtest.gateway_cost.limits import limits
from loadtest.gateway_cost.script import Script
from loadtest.gateway_cost.settings import CostSettings
from loadtest.gateway_cost.throughput import Flow
from loadtest.spread import percentile
from shared.errors import ConfigError, InternalError, UnavailableError
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_tokenizer_folder


def chunk(text: str | None, **fields: Any) -> dict[str, Any]:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return {"choices": choices, **fields}


LAST = chunk(None, usage={"completion_tokens": 3}, tandem={"phases_ms": {"prefill": 20.5}})


def response(*chunks: dict[str, Any], done: bool = True) -> bytes:
    """An HTTP/1.1 response, one HTTP chunk a frame."""
    frames = [b"data: " + orjson.dumps(each) + b"\n\n" for each in chunks]
    frames.insert(0, b": ping\n\n")
    if done:
        frames.append(b"data: [DONE]\n\n")
    body = b"".join(b"%x\r\n%s\r\n" % (len(frame), frame) for frame in frames)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """Takes what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))


async def received(raw: bytes, cuts: list[int]) -> Exchange:
    """What a connection makes of bytes that arrive in pieces."""
    connection, wire = Connection(), Wire()
    connection.connection_made(wire)
    asked = asyncio.create_task(connection.ask(b"request"))
    await asyncio.sleep(0)
    assert wire.written == [b"request"]
    edges = [0, *sorted(cut % len(raw) for cut in cuts), len(raw)]
    for start, end in pairwise(edges):
        if start < end:
            connection.data_received(raw[start:end])
    return await asked


@given(st.lists(st.integers(min_value=0, max_value=10_000), max_size=12))
def test_a_stream_is_read_whole_however_it_is_cut(cuts: list[int]) -> None:
    raw = response(chunk(""), chunk("a\r\n0"), chunk('"é\n\n'), LAST)
    exchange = asyncio.run(received(raw, cuts))
    answer = read_answer(exchange)
    assert (answer.text, answer.completion_tokens, answer.frames) == ('a\r\n0"é\n\n', 3, 2)
    assert answer.phases_ms == {"prefill": 20.5}
    assert 0 < exchange.sent <= exchange.first_text <= exchange.ended


async def test_the_role_alone_is_no_first_text() -> None:
    connection = Connection()
    connection.connection_made(Wire())
    begun = asyncio.get_running_loop().create_future()
    asked = asyncio.create_task(connection.ask(b"request", begun=begun))
    await asyncio.sleep(0)
    raw = response(chunk(""), chunk("Hi"), LAST)
    at = raw.index(b"Hi")
    connection.data_received(raw[:at])
    assert not begun.done()
    connection.data_received(raw[at:])
    assert begun.done()
    assert (await asked).first_text


async def test_a_refusal_and_a_break_are_errors() -> None:
    with pytest.raises(UnavailableError, match="429 Too Many"):
        await received(b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}", [3])
    connection = Connection()
    connection.connection_made(Wire())
    asked = asyncio.create_task(connection.ask(b"request"))
    await asyncio.sleep(0)
    connection.connection_lost(None)
    with pytest.raises(UnavailableError, match="broke"):
        await asked


@pytest.mark.parametrize(
    "raw",
    [
        response(chunk("a"), LAST, done=False),
        response(chunk("a"), {"error": {"message": "x", "code": "y"}}),
        response(),
    ],
)
def test_streams_that_do_not_end_well_are_no_answers(raw: bytes) -> None:
    with pytest.raises(InternalError):
        read_answer(Exchange(0.0, pieces=[raw]))


def test_requests_are_whole_http() -> None:
    head, _, body = chat_request(model="m", prompt="é", seed=3, max_tokens=7).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    sent = orjson.loads(body)
    assert (sent["seed"], sent["max_tokens"], sent["stream"]) == (3, 7, True)


def test_added_time_is_what_the_worker_did_not_take() -> None:
    first = FirstTokens(ttft_ms=(23.0, 25.0), worker_ms=(20.0, 21.0), late_ms=(0.0, 1.0))
    second = FirstTokens(ttft_ms=(30.0,), worker_ms=(20.0,), late_ms=(0.5,))
    assert first.added_ms == [3.0, 4.0]
    found = arrivals.summary([first, second])
    assert found["added_ttft_ms"] == {"p50": 4.0, "p90": 10.0, "p99": 10.0, "max": 10.0}
    assert found["added_ttft_p50_ms_by_run"] == {"median": 6.5, "min": 3.0, "max": 10.0}
    assert (found["requests"], found["client_late_ms_p99"]) == (3, 1.0)


def test_rates_count_tokens_and_not_chunks() -> None:
    runs = [
        Flow(tokens=1000, frames=250, seconds=0.5, cpu_s={"gateway": 0.1}),
        Flow(tokens=1000, frames=500, seconds=1.0, cpu_s={"gateway": 0.2}),
    ]
    found = throughput.summary(runs)
    assert found["tokens_per_s"] == {"median": 1500.0, "min": 1000.0, "max": 2000.0}
    assert found["tokens_per_chunk"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    cpu = found["cpu_s_per_1000_tokens"]
    assert isinstance(cpu, dict)
    assert cpu["gateway"]["median"] == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (1, 1.0), (50, 2.0), (51, 3.0), (99, 4.0), (100, 4.0)]
)
def test_percentiles_are_values_that_were_measured(percent: float, expected: float) -> None:
    assert percentile([4.0, 2.0, 1.0, 3.0], percent) == expected


@given(st.lists(st.floats(-1e6, 1e6), min_size=1), st.floats(0, 100))
def test_so_many_values_do_not_exceed_a_percentile(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-6


def test_arrivals_are_a_poisson_process_of_their_seed() -> None:
    moments = list(poisson_moments(20.0, 500.0, rng=Random(1)))
    assert moments == list(poisson_moments(20.0, 500.0, rng=Random(1)))
    assert moments == sorted(moments)
    assert moments[-1] < 500.0
    assert len(moments) == pytest.approx(10_000, rel=0.05)
    in_each_second = [sum(s <= moment < s + 1 for moment in moments) for s in range(200)]
    mean = sum(in_each_second) / 200
    variance = sum((count - mean) ** 2 for count in in_each_second) / 200
    assert variance == pytest.approx(mean, rel=0.3)


def test_limits_say_whether_they_were_met() -> None:
    first_token = {"gateway": {"added_ttft_ms": {"p50": 3.0, "p99": 15.1}}}
    flows = {
        size: {
            "gateway": {"tokens_per_s": {"median": rate}},
            "tokens_per_s_of_relay": {"median": ratio},
        }
        for size, rate, ratio in (("4", 20_000.0, 0.9), ("1", 8_000.0, 0.49))
    }
    found = limits(first_token, flows)
    assert {name: limit["met"] for name, limit in found.items()} == {
        "added_ttft_p50_ms": True,
        "added_ttft_p99_ms": False,
        "tokens_per_s": True,
        "tokens_per_s_of_relay": False,
    }
    assert set(limits(first_token, {})) == {"added_ttft_p50_ms", "added_ttft_p99_ms"}


def test_answers_begin_at_sentences_and_go_round(tmp_path: Path) -> None:
    script = Script(Tokenizer.from_folder(write_tokenizer_folder(tmp_path)))
    long = script.text(3, 3 * len(script.token_ids))
    assert len({script.text(seed, 20) for seed in range(5)}) == 5
    assert script.text(5, 20) == script.text(0, 20)
    assert "🙂" in long
    assert "\ufffd" not in long
    assert long.startswith(script.text(3, len(script.token_ids)))


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"seconds": 0.0}, {"tokens_per_message": (0,)}])
def test_sizes_that_measure_nothing_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        CostSettings(model_dir=tmp_path, gateway_command=lambda flags: flags, **wrong)

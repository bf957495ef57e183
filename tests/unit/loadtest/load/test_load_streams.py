"""What the load suite makes of a stream: server-sent events, outcomes, verdicts, summaries."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.load.chunks import note_frame
from loadtest.load.exchange import Exchange, Ticket
from loadtest.load.judge import EXIT_CODES, Verdict, met, verdict
from loadtest.load.outcome import Failure, Outcome
from loadtest.load.plan import PlannedRequest
from loadtest.load.plots import under_way
from loadtest.load.record import Record
from loadtest.load.results import read_summary, write_results
from loadtest.load.settings import LoadSettings
from loadtest.load.sse import SseReader
from loadtest.load.summary import highest_rate_held, summary_of
from loadtest.load.workloads import Profile, Slo, classes_of
from shared.errors import ConfigError

CHAT = replace(classes_of(Profile.CPU)["chat"], slo=Slo(ttft=1.0, tpot=0.5, gap=1.0))
RAW = (
    ": hello\r\n\r\n"
    'data: {"a": "é"}\n\n'
    "event: x\rdata: one\rdata:two\r\r"
    "id: 3\r\ndata\r\ndata: [DONE]\r\n\r\n"
    "data: incomplete"
).encode()
EVENTS = ['{"a": "é"}', "one\ntwo", "\n[DONE]"]


def read(pieces: Sequence[bytes]) -> list[str]:
    reader = SseReader()
    return [event for piece in pieces for event in reader.feed(piece)]


def test_events_are_the_same_whereever_the_stream_is_cut_twice() -> None:
    for first, second in combinations(range(len(RAW) + 1), 2):
        assert read([RAW[:first], RAW[first:second], RAW[second:]]) == EVENTS


def test_events_come_byte_by_byte_and_behind_a_byte_order_mark() -> None:
    assert read([bytes([byte]) for byte in RAW]) == EVENTS
    assert read([b"\xef\xbb\xbfdata: x\n\n"]) == ["x"]


@given(st.lists(st.text().filter(lambda t: not set(t) & set("\r\n")), min_size=1), st.data())
def test_any_text_comes_through_any_cuts(texts: list[str], data: st.DataObject) -> None:
    raw = b"".join(b"data: " + text.encode() + b"\n\n" for text in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    edges = [0, *cuts, len(raw)]
    assert read([raw[a:b] for a, b in pairwise(edges)]) == texts


def ticket() -> Ticket:
    return Ticket(PlannedRequest(index=3, kind=CHAT, prompt_tokens=9, answer_tokens=4), due_s=0.5)


def outcome_of(frames: Sequence[Any], moments: Sequence[float]) -> Outcome:
    """A request that began at the first moment; texts and the end take the next ones."""
    clock: Iterator[float] = iter(moments)
    exchange = Exchange(ticket(), lambda: next(clock))
    exchange.begin()
    for frame in frames:
        note_frame(frame if isinstance(frame, str) else orjson.dumps(frame).decode(), exchange)
    exchange.end()
    return exchange.outcome()


def chat(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, **fields}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}}
FINISH = chat(None, finish_reason="length")
WELL = [chat(""), chat("a"), chat("bc"), chat("d"), FINISH, USAGE, "[DONE]"]


def test_times_are_those_of_texts_and_tokens_those_of_usage() -> None:
    found = outcome_of(WELL, [1.0, 1.4, 1.6, 2.2, 2.5])
    assert found.finished
    assert found.started_s == 1.0
    assert found.ttft_s == pytest.approx(0.4)
    assert found.e2e_s == pytest.approx(1.5)
    assert found.itl_mean_s == pytest.approx(0.4)
    assert found.itl_max_s == pytest.approx(0.6)
    assert found.tpot_s == pytest.approx(0.8 / 4)  # five tokens came in three pieces
    assert (found.prompt_tokens, found.answer_tokens) == (9, 5)


def test_reasoning_and_completions_count_as_text() -> None:
    thought = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    plain = {"choices": [{"text": "a", "finish_reason": None}]}
    found = outcome_of([thought, plain, FINISH, USAGE, "[DONE]"], [0.0, 0.1, 0.3, 0.4])
    assert found.ttft_s == pytest.approx(0.1)
    assert found.itl_max_s == pytest.approx(0.2)


ERROR = {"error": {"message": "broke", "code": "internal_error"}}


@pytest.mark.parametrize(
    ("frames", "failure"),
    [
        (WELL[:-1], Failure.TRUNCATED),
        ([WELL[1], ERROR, "[DONE]"], Failure.ERROR_FRAME),
        ([WELL[1], USAGE, "[DONE]"], Failure.NO_FINISH_REASON),
        ([WELL[1], FINISH, "[DONE]"], Failure.NO_USAGE),
        ([FINISH, USAGE, "[DONE]"], Failure.NO_TEXT),
        ([WELL[1], "{", *WELL[2:]], Failure.BAD_FRAME),
        ([WELL[1], "[]", *WELL[2:]], Failure.BAD_FRAME),
        ([WELL[1], "{}", *WELL[2:]], Failure.BAD_FRAME),
    ],
)
def test_failures_have_a_reason_and_no_times(frames: list[Any], failure: Failure) -> None:
    found = outcome_of(frames, range(20))
    assert found.failure == failure
    assert not found.finished
    times = (found.ttft_s, found.e2e_s, found.itl_mean_s, found.itl_max_s, found.tpot_s)
    assert times == (None,) * 5


def test_who_left_on_purpose_has_not_failed() -> None:
    clock = iter([0.0, 1.0])
    exchange = Exchange(ticket(), lambda: next(clock))
    exchange.begin()
    exchange.leave()
    exchange.fail(Failure.TRUNCATED, "closed")
    exchange.end()
    assert exchange.outcome().left
    assert exchange.outcome().failure is None


def served(**times: Any) -> Outcome:
    fields = {"ttft_s": 0.5, "tpot_s": 0.1, "itl_max_s": 0.2, "itl_mean_s": 0.1, "e2e_s": 1.0}
    base = {"index": 0, "kind": "chat", "stage": 0, "due_s": 1.0, "started_s": 1.0}
    return Outcome(**{**base, "prompt_tokens": 10, "answer_tokens": 5, **fields, **times})


FAILED = Outcome(index=0, kind="chat", stage=0, due_s=1, started_s=1, failure="http_503")
LEFT = Outcome(index=0, kind="chat", stage=0, due_s=1, started_s=1, left=True)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (served(), True),
        (served(ttft_s=1.0, tpot_s=0.5, itl_max_s=1.0), True),
        (served(ttft_s=1.01), False),
        (served(tpot_s=0.51), False),
        (served(itl_max_s=1.01), False),
        (served(tpot_s=None, itl_max_s=None), True),  # one token
        (FAILED, False),
        (LEFT, False),
    ],
)
def test_every_bound_must_be_met(outcome: Outcome, expected: bool) -> None:
    assert met(outcome, CHAT) is expected


def test_a_slow_reader_s_times_are_its_own() -> None:
    assert met(served(ttft_s=99.0), replace(CHAT, pause_s=0.1))


def test_verdicts() -> None:
    def judged(*shares: float | None, saturated: bool = False, complete: bool = True) -> Verdict:
        return verdict(shares, wanted=0.9, saturated=saturated, complete=complete)

    assert judged(0.9, None, 1.0) is Verdict.PASS
    assert judged(0.9, 0.89) is Verdict.MISSED
    assert judged(None) is judged() is Verdict.MISSED
    assert judged(1.0, saturated=True) is Verdict.CLIENT_SATURATED
    assert judged(1.0, saturated=True, complete=False) is Verdict.INCOMPLETE
    assert len(set(EXIT_CODES.values())) == len(Verdict)


MACHINE = {
    "command": "locust <x>",
    "commit": "c" * 40,
    "uncommitted_changes": False,
    "hardware": {"cpu": "one", "cores": 2},
}
SERVER = {"model": "m", "version": "1", "fingerprint": "f" * 64, "properties": {}}


def settings_for(out: Path, **fields: Any) -> LoadSettings:
    given = {"slo": ("chat:ttft=1,tpot=0.5,gap=1",), "stages": "1:2,2:2"} | fields
    return LoadSettings(host="http://h", out=out, workload="cancel", **given)


OUTCOMES = [
    served(started_s=1.1),
    served(started_s=3.0, due_s=3.0, stage=1, e2e_s=2.0),
    served(started_s=3.5, due_s=3.5, stage=1, ttft_s=5.0),
    replace(FAILED, stage=1),
    replace(LEFT, kind="cancel"),
]


def test_a_summary_counts_what_was_offered_and_what_was_served(tmp_path: Path) -> None:
    record = Record(planned=5, outcomes=list(OUTCOMES), complete=True)
    found = summary_of(record, settings_for(tmp_path), server=SERVER, machine=MACHINE)
    assert found["requests"] == {
        "offered": 5, "finished": 3, "failed": 1, "left": 1, "met": 2, "attainment": 0.5,
    }  # fmt: skip
    assert found["failures"] == {"http_503": 1}
    assert found["window_s"] == pytest.approx(4.0)  # from 1.0 to 5.0
    assert found["goodput_per_s"] == pytest.approx(2 / 4)
    assert found["throughput"]["answer_tokens_per_s"] == pytest.approx(15 / 4)
    assert found["classes"]["chat"]["ttft"]["count"] == 3
    assert found["classes"]["cancel"]["attainment"] is None
    assert [stage["attainment"] for stage in found["stages"]] == [1.0, pytest.approx(1 / 3)]
    assert highest_rate_held(found) == 1.0
    assert found["verdict"] == "missed"


def test_the_time_in_which_nothing_was_answered_counts(tmp_path: Path) -> None:
    lost = [replace(FAILED, started_s=float(moment)) for moment in (2, 5, 11)]
    record = Record(planned=4, outcomes=[served(), *lost], complete=True)
    found = summary_of(record, settings_for(tmp_path), server=SERVER, machine=MACHINE)
    assert found["window_s"] == pytest.approx(10.0)
    assert found["goodput_per_s"] == pytest.approx(1 / 10)


def test_the_files_of_a_run(tmp_path: Path) -> None:
    record = Record(planned=5, outcomes=list(OUTCOMES), complete=True)
    out = tmp_path / "found"
    code = write_results(record, settings_for(out), server=SERVER, machine=MACHINE)
    assert code == 1
    assert read_summary(out) == read_summary(out / "summary.json")
    lines = (out / "requests.jsonl").read_text().splitlines()
    assert [orjson.loads(line)["failure"] for line in lines].count("http_503") == 1
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "locust &lt;x&gt;" in page
    assert "Highest rate served in time: 1.00" in page


def test_a_run_without_answers_is_reported_too(tmp_path: Path) -> None:
    record = Record(planned=1, outcomes=[FAILED], complete=True)
    assert write_results(record, settings_for(tmp_path), server=SERVER, machine=MACHINE) == 1
    assert read_summary(tmp_path)["throughput"] is None
    empty, plain = Record(planned=1), settings_for(tmp_path, figures=False)
    assert write_results(empty, plain, server=SERVER, machine=MACHINE) == 8


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"verdict": "good"}'])
def test_a_file_that_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(ConfigError, match="no result of a load run"):
        read_summary(tmp_path)


def test_requests_under_way_begin_and_end_at_nothing() -> None:
    moments, running = under_way(OUTCOMES)
    assert moments == sorted(moments)
    assert running[-1] == 0
    assert max(running) == 2

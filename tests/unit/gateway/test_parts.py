"""Admission, answers, background tasks, errors and settings."""

import asyncio
from pathlib import Path

import pytest

from gateway.admission import Admission
from gateway.answer import Answer
from gateway.background import Background
from gateway.config import GatewayConfig
from gateway.errors import reply_for
from gateway.job import GenerationJob
from gateway.routes.names import request_id_from
from shared import errors
from shared.config.fields import describe
from shared.config.loader import load_config
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.options import RequestOptions
from shared.types.sampling import FinishReason, SampledToken, SamplingParams, StopConditions
from tests.support.tiny_tokenizer import write_tokenizer_folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    return Tokenizer.from_folder(folder)


def make_answer(
    tokenizer: Tokenizer, stop: StopConditions, *, include_stop: bool = False
) -> Answer:
    job = GenerationJob(
        request_id="r",
        endpoint="e",
        model="m",
        prompt_ids=[1],
        sampling=SamplingParams(),
        stop=stop,
        options=RequestOptions(),
        include_stop=include_stop,
        arrived=0.0,
        deadline=1.0,
    )
    return Answer(job, tokenizer=tokenizer)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[SampledToken]:
    return [SampledToken(token_id=i) for i in tokenizer.encode(text)]


def test_admission_bounds_tokens() -> None:
    admission = Admission(10)
    first = admission.enter(50)
    with pytest.raises(errors.OverloadedError) as caught:
        admission.enter(1)
    assert caught.value.retry_after_s == 1.0
    first.leave()
    first.leave()
    assert (admission.queued_tokens, admission.queued_requests) == (0, 0)
    second, third = admission.enter(4), admission.enter(6)
    second.leave()
    third.leave()
    admission.draining = True
    with pytest.raises(errors.UnavailableError) as refused:
        admission.enter(1)
    assert refused.value.error_code == "draining"


@pytest.mark.parametrize(("speed", "wait"), [(0.0, 1.0), (10.0, 5.0), (0.1, 30.0), (1e9, 1.0)])
def test_retry_hint_follows_the_speed(speed: float, wait: float) -> None:
    admission = Admission(10, tokens_per_second=lambda: speed)
    admission.enter(50)
    with pytest.raises(errors.OverloadedError) as caught:
        admission.enter(1)
    assert caught.value.retry_after_s == wait


def test_answer_ends_in_the_middle_of_a_batch(tokenizer: Tokenizer) -> None:
    answer = make_answer(tokenizer, StopConditions(max_tokens=3))
    delta = answer.push(tokens_of(tokenizer, "abcdef"))
    assert (delta.text, len(delta.tokens), answer.reason) == ("abc", 3, FinishReason.LENGTH)
    assert answer.push(tokens_of(tokenizer, "g")).text == ""
    assert answer.completion_tokens == 3


def test_answer_ends_by_id_and_releases_what_was_withheld(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_ids
    stop = StopConditions(max_tokens=99, token_ids=eos, strings=("bcd",))
    answer = make_answer(tokenizer, stop)
    assert answer.push(tokens_of(tokenizer, "abc")).text == "a"
    assert answer.push([SampledToken(token_id=eos[0])]).text == "bc"
    assert (answer.reason, answer.stop_match) == (FinishReason.STOP, str(eos[0]))
    assert answer.completion_tokens == 4


def test_stop_string_wins_over_the_limit(tokenizer: Tokenizer) -> None:
    answer = make_answer(tokenizer, StopConditions(max_tokens=2, strings=("b",)))
    assert answer.push(tokens_of(tokenizer, "ab")).text == "a"
    assert (answer.reason, answer.stop_match) == (FinishReason.STOP, "b")


def test_min_tokens_protects_from_every_stop(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_ids
    stop = StopConditions(max_tokens=9, min_tokens=3, token_ids=eos, strings=("a",))
    answer = make_answer(tokenizer, stop)
    delta = answer.push([SampledToken(token_id=eos[0]), *tokens_of(tokenizer, "ab")])
    assert (delta.text, answer.reason) == ("ab", None)


def test_decode_worker_has_the_last_word(tokenizer: Tokenizer) -> None:
    answer = make_answer(tokenizer, StopConditions(max_tokens=9, strings=("xyz",)))
    assert answer.push(tokens_of(tokenizer, "ax")).text == "a"
    assert answer.finish(FinishReason.LENGTH, match=None).text == "x"
    assert answer.finish(FinishReason.STOP, match="q").text == ""
    assert answer.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (
            errors.InvalidRequestError("m", param="a.b"),
            400,
            "invalid_request_error",
            "invalid_value",
        ),
        (errors.ContextLengthError("m"), 400, "invalid_request_error", "context_length_exceeded"),
        (errors.ModelNotFoundError("m"), 404, "invalid_request_error", "model_not_found"),
        (errors.RequestTooLargeError("m"), 413, "invalid_request_error", "request_too_large"),
        (errors.OverloadedError("m"), 429, "overloaded_error", "queue_full"),
        (errors.UnavailableError("m", code="draining"), 503, "server_error", "draining"),
        (errors.TransportError("m"), 502, "server_error", "kv_transfer_failed"),
        (errors.DeadlineError("m"), 504, "timeout_error", "deadline_exceeded"),
        (errors.InternalError("m"), 500, "server_error", "internal_error"),
        (errors.ConfigError("m"), 500, "server_error", "invalid_config"),
    ],
)
def test_error_table(error: errors.TandemError, status: int, kind: str, code: str) -> None:
    reply = reply_for(error)
    assert reply.status == status
    # LangChain finds the code of an overflow in the text.
    text = "m (context_length_exceeded)" if code == "context_length_exceeded" else "m"
    assert reply.body == {
        "error": {"message": text, "type": kind, "param": error.param, "code": code}
    }
    assert ("retry-after" in reply.headers) == (status in {429, 503})
    assert (reply.headers.get("x-should-retry") == "false") == (status == 504)


def test_retry_after_is_whole_seconds_and_milliseconds() -> None:
    headers = reply_for(errors.OverloadedError("m", retry_after_s=1.2)).headers
    assert headers == {"retry-after": "2", "retry-after-ms": "1200"}


def test_request_ids() -> None:
    assert request_id_from("abc-1.2:x_Y") == "abc-1.2:x_Y"
    for odd in (None, "", "a b", "x" * 101, "a\r\nb", "é"):
        assert request_id_from(odd).startswith("req_")


async def test_background_logs_and_waits() -> None:
    background = Background()
    done = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append(1)

    async def fail() -> None:
        raise errors.UnavailableError("gone")

    async def hang() -> None:
        await asyncio.sleep(60)

    background.spawn(work(), name="work")
    background.spawn(fail(), name="fail")
    hanging = background.spawn(hang(), name="hang")
    await background.close(timeout_s=0.1)
    assert done == [1]
    assert hanging.cancelled()
    await background.close(timeout_s=0.1)


def test_settings() -> None:
    assert all(info.doc for info in describe(GatewayConfig).values())
    for field in ("max_body_bytes", "queue_tokens", "keepalive_s", "breaker_failures"):
        with pytest.raises(errors.ConfigError, match=field):
            load_config(GatewayConfig, section="gateway", flags={field: "0"}, environ={})
    with pytest.raises(errors.ConfigError, match="max_retries"):
        GatewayConfig(max_retries=-1)

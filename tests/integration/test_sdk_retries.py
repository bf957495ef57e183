"""The Python clients before a server that follows a script: what is sent, repeated and given up."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import pytest

from gateway.sdk import (
    AsyncTandemClient,
    ConfigError,
    DeadlineError,
    Generation,
    HandoffError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    Retry,
    TandemClient,
    TandemError,
    Tls,
    UnavailableError,
    UnreachableError,
)
from protos.tandem.v1 import inference_pb2
from shared.rpc.server import build_server
from shared.telemetry.certificates import Certificates, TlsFiles
from tests.support.scripted_gateway import WELL, accepted, delta, finished, scripted_gateway
from tests.support.tls_files import Authority

QUICK = Retry(pause_s=0.01)
TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"

Generate = Callable[..., Coroutine[Any, Any, Generation]]


async def by_task(address: str, prompt: str, *, retry: Retry = QUICK, **params: Any) -> Generation:
    async with AsyncTandemClient(address, api_key="secret", retry=retry) as client:
        return await client.generate(prompt, **params)


async def by_thread(
    address: str, prompt: str, *, retry: Retry = QUICK, **params: Any
) -> Generation:
    def call() -> Generation:
        with TandemClient(address, api_key="secret", retry=retry) as client:
            return client.generate(prompt, **params)

    return await asyncio.to_thread(call)


@pytest.fixture(params=[by_task, by_thread])
def generate(request: pytest.FixtureRequest) -> Generate:
    found: Generate = request.param
    return found


async def test_a_gateway_without_workers_is_asked_again(generate: Generate) -> None:
    down = UnavailableError("no worker", code="no_prefill_worker")
    async with scripted_gateway([accepted("r0"), down], [down]) as gateway:
        found = await generate(gateway.address, "hi", request_id="mine", traceparent=TRACE)
        assert (found.text, found.request_id, found.prompt_tokens) == ("fine", "r1", 7)
        assert len(gateway.requests) == 3
        assert gateway.metadata == [
            {
                "authorization": "Bearer secret",
                "x-request-id": "mine",
                "traceparent": TRACE,
                "tracestate": "",
            }
        ] * len(gateway.metadata)
        assert gateway.requests[0] == gateway.requests[2]


async def test_it_is_given_up_in_the_end(generate: Generate) -> None:
    down = UnavailableError("no worker", code="no_decode_worker")
    async with scripted_gateway([down], [down], [down]) as gateway:
        with pytest.raises(UnavailableError) as caught:
            await generate(gateway.address, "hi")
        assert caught.value.error_code == "no_decode_worker"
        assert isinstance(caught.value.__cause__, grpc.RpcError)
        assert caught.value.__cause__.code() is grpc.StatusCode.UNAVAILABLE
        assert len(gateway.requests) == 3


async def test_room_later_is_waited_for_and_far_later_is_not(generate: Generate) -> None:
    soon = OverloadedError("full", retry_after_s=0.02)
    late = OverloadedError("full", retry_after_s=60.0)
    async with scripted_gateway([soon], [late]) as gateway:
        with pytest.raises(OverloadedError) as caught:
            await generate(gateway.address, "hi")
        assert caught.value.retry_after_s == 60.0
        assert len(gateway.requests) == 2


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("no", param="temperature"),
        HandoffError("lost"),
        DeadlineError("late"),
        InternalError("defect"),
    ],
)
async def test_other_failures_are_not_repeated(generate: Generate, error: TandemError) -> None:
    async with scripted_gateway([error]) as gateway:
        with pytest.raises(type(error)) as caught:
            await generate(gateway.address, "hi")
        assert caught.value.param == error.param
        assert len(gateway.requests) == 1


async def test_nothing_is_repeated_after_the_first_token(generate: Generate) -> None:
    async with scripted_gateway([accepted(), delta("a"), UnavailableError("gone")]) as gateway:
        with pytest.raises(UnavailableError):
            await generate(gateway.address, "hi")
        assert len(gateway.requests) == 1


async def test_tries_share_the_deadline_of_the_call(generate: Generate) -> None:
    down = UnavailableError("x", retry_after_s=0.5)  # grpc rounds what is left up to a tenth
    async with scripted_gateway([down]) as gateway:
        await generate(gateway.address, "hi", timeout_s=9.0)
        first, second = gateway.remaining_s
        assert first is not None
        assert second is not None
        assert second < first < 9.1
        await generate(gateway.address, "hi")
        last = gateway.remaining_s[-1]
        assert last is None or last > 1e6, "no limit"


async def test_nobody_listens(generate: Generate) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnreachableError):
            await generate(address, "hi", retry=Retry(attempts=2, pause_s=0.01))


async def test_a_gateway_that_starts_late_is_found(generate: Generate) -> None:
    async with scripted_gateway() as first:
        assert (await generate(first.address, "hi")).text == "fine"
    patient = Retry(attempts=200, pause_s=0.02, longest_s=0.1)
    asked = asyncio.create_task(generate(first.address, "hi", retry=patient))
    await asyncio.sleep(0.1)
    assert not asked.done()
    async with scripted_gateway(port=int(first.address.rpartition(":")[2])):
        assert (await asked).text == "fine"


async def test_events_of_a_newer_gateway_are_passed_over(generate: Generate) -> None:
    newer = inference_pb2.GenerateResponse()
    newer.ParseFromString(b"\x7a\x02hi")  # field 15, which no event of ours has
    async with scripted_gateway([*WELL[:1], newer, *WELL[1:]]) as gateway:
        assert (await generate(gateway.address, "hi")).text == "fine"


async def test_a_call_that_ends_without_its_end_is_no_result(generate: Generate) -> None:
    scripts = (
        [accepted(), delta("a")],
        [accepted(), delta("a"), delta("b", answer=1), finished(answer=1)],
    )
    for script in scripts:
        async with scripted_gateway(script) as gateway:
            with pytest.raises(InternalError):
                await generate(gateway.address, "hi")


async def test_metadata_that_no_call_can_carry(generate: Generate) -> None:
    async with scripted_gateway() as gateway:
        with pytest.raises(InvalidRequestError) as caught:
            await generate(gateway.address, "hi", request_id="zürich")
        assert caught.value.param == "x-request-id"
        assert not gateway.requests


async def test_the_clients_own_certificate(tmp_path: Path) -> None:
    authority = Authority()
    own, mine = authority.issue(tmp_path / "server"), authority.issue(tmp_path / "client")
    server = build_server(
        host="127.0.0.1",
        port=0,
        service_names=(),
        certificates=Certificates(TlsFiles(cert=own.cert, key=own.key, ca=own.ca)),
    )
    await server.start()
    await server.health.set_ready(True)
    try:
        with_mine = Tls(ca=mine.ca, cert=mine.cert, key=mine.key, name="localhost")
        async with AsyncTandemClient(server.address, tls=with_mine) as client:
            assert await client.ready()
        async with AsyncTandemClient(server.address, tls=Tls(ca=mine.ca)) as client:
            with pytest.raises(UnavailableError):
                await client.ready()
    finally:
        await server.stop()


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        TandemClient("127.0.0.1:1", tls=Tls(ca=tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match="belong together"):
        TandemClient("127.0.0.1:1", tls=Tls(key=tmp_path / "missing.pem"))

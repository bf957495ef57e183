"""InferenceService through generated stubs."""

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gateway.pipeline import Pipeline
from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.errors import (
    ContextLengthError,
    HandoffError,
    InvalidRequestError,
    ModelNotFoundError,
    TandemError,
)
from shared.rpc.status import error_from_rpc
from shared.types.token_ids import ids_to_bytes
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig
from tests.support.simulated_workers import FailEvent

GREEDY = common_pb2.SamplingParams(temperature=0, logprobs=1)


@pytest.fixture
async def channel(rig: Rig) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as opened:
        yield opened


async def collect(
    channel: grpc.aio.Channel, request: inference_pb2.GenerateRequest
) -> list[inference_pb2.GenerateResponse]:
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return [response async for response in stub.Generate(request)]


async def test_generate_streams(rig: Rig, channel: grpc.aio.Channel) -> None:
    conversation = inference_pb2.Conversation(
        messages=[inference_pb2.ChatMessage(role="user", content="hi")]
    )
    request = inference_pb2.GenerateRequest(
        model="simulated", conversation=conversation, sampling=GREEDY
    )
    responses = await collect(channel, request)
    assert responses[0].accepted.prompt_tokens > 0
    assert responses[0].accepted.request_id
    deltas = [r.delta for r in responses if r.WhichOneof("event") == "delta"]
    assert "".join(delta.text for delta in deltas) == DEFAULT_ANSWER
    assert deltas[0].tokens[0].logprob == -0.5
    finished = responses[-1].finished
    assert finished.reason == common_pb2.FINISH_REASON_STOP
    assert finished.usage.prompt_tokens == responses[0].accepted.prompt_tokens
    assert finished.report.ttft_seconds > 0
    assert finished.report.transport == "grpc"
    assert {phase.phase for phase in finished.report.phases} >= {"prefill", "decode"}


async def test_text_and_token_ids_are_equal(rig: Rig, channel: grpc.aio.Channel) -> None:
    ids = rig.simulation.tokenizer.encode("hello there")
    stop = common_pb2.StopConditions(max_tokens=4)
    forms = (
        inference_pb2.GenerateRequest(text="hello there", stop=stop),
        inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=ids), stop=stop),
        inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(packed=ids_to_bytes(ids)), stop=stop
        ),
    )
    for request in forms:
        finished = (await collect(channel, request))[-1].finished
        assert finished.usage.prompt_tokens == len(ids)
        assert finished.usage.completion_tokens == 4
        assert finished.reason == common_pb2.FINISH_REASON_LENGTH


async def test_stop_strings_and_eos(rig: Rig, channel: grpc.aio.Channel) -> None:
    request = inference_pb2.GenerateRequest(
        text="a", stop=common_pb2.StopConditions(strings=[" the"]), ignore_eos=True
    )
    responses = await collect(channel, request)
    text = "".join(r.delta.text for r in responses if r.WhichOneof("event") == "delta")
    assert text == "Hello world,"
    assert responses[-1].finished.stop_match == " the"


@pytest.mark.parametrize(
    ("request_pb", "error", "param"),
    [
        (inference_pb2.GenerateRequest(), InvalidRequestError, "prompt"),
        (inference_pb2.GenerateRequest(text=""), InvalidRequestError, "text"),
        (inference_pb2.GenerateRequest(text="a", model="x"), ModelNotFoundError, "model"),
        (
            inference_pb2.GenerateRequest(token_ids=inference_pb2.TokenIds(ids=[10**6])),
            InvalidRequestError,
            "token_ids",
        ),
        *(
            (inference_pb2.GenerateRequest(token_ids=ids), InvalidRequestError, "token_ids")
            for ids in (
                inference_pb2.TokenIds(),
                inference_pb2.TokenIds(packed=ids_to_bytes([1, 10**6])),
                inference_pb2.TokenIds(packed=b"12345"),
                inference_pb2.TokenIds(ids=[1], packed=ids_to_bytes([1])),
            )
        ),
        (
            inference_pb2.GenerateRequest(
                text="a", stop=common_pb2.StopConditions(max_tokens=5000)
            ),
            ContextLengthError,
            "text",
        ),
        (
            inference_pb2.GenerateRequest(
                text="a", sampling=common_pb2.SamplingParams(temperature=float("nan"))
            ),
            InvalidRequestError,
            "temperature",
        ),
        (
            inference_pb2.GenerateRequest(
                text="a", stop=common_pb2.StopConditions(token_ids=[10**6])
            ),
            InvalidRequestError,
            "stop.token_ids",
        ),
    ],
)
async def test_errors_carry_their_details(
    channel: grpc.aio.Channel,
    request_pb: inference_pb2.GenerateRequest,
    error: type[TandemError],
    param: str,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(channel, request_pb)
    found = error_from_rpc(caught.value)
    assert type(found) is error
    assert found.param == param


async def test_refusals_are_counted_as_those_of_rest_are(
    rig: Rig, channel: grpc.aio.Channel
) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await collect(channel, inference_pb2.GenerateRequest(text="a", model="x"))
    rig.decodes[0].plan.at("token:2", FailEvent(HandoffError("page lost")))
    with pytest.raises(grpc.aio.AioRpcError):
        await collect(channel, inference_pb2.GenerateRequest(text="a"))
    metrics = (await rig.http.get("/metrics")).text
    assert 'tandem_rejected_total{reason="model_not_found"} 1.0' in metrics
    assert "kv_transfer_failed" not in metrics, "its answer had begun"


async def test_an_unforeseen_exception_is_no_client_that_left(
    rig: Rig, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Pipeline, "refuse_if_full", fail)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(channel, inference_pb2.GenerateRequest(text="a"))
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    metrics = (await rig.http.get("/metrics")).text
    labels = 'code="INTERNAL",endpoint="Generate",outcome="error"'
    assert f"tandem_requests_total{{{labels}}} 1.0" in metrics


async def test_worker_failure_is_a_status(rig: Rig, channel: grpc.aio.Channel) -> None:
    rig.decodes[0].plan.at("token:2", FailEvent(HandoffError("page lost")))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(channel, inference_pb2.GenerateRequest(text="a"))
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert error_from_rpc(caught.value).error_code == "kv_transfer_failed"
    assert (await collect(channel, inference_pb2.GenerateRequest(text="a")))[-1].finished.reason


async def test_cancel_reaches_the_workers(rig: Rig, channel: grpc.aio.Channel) -> None:
    rig.decodes[0].plan.at("token:3", 30.0)
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    call = stub.Generate(inference_pb2.GenerateRequest(text="a"))
    await rig.simulation.seen("d0", "Decode")
    await asyncio.sleep(0.1)
    call.cancel()
    await rig.simulation.seen("d0", "closed")
    await rig.simulation.seen("d0", "Cancel")


async def test_health_and_reflection(rig: Rig, channel: grpc.aio.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "readiness", "tandem.v1.InferenceService"):
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    async for listed in reflection.ServerReflectionInfo(iter([asked])):
        names = {service.name for service in listed.list_services_response.service}
        assert "tandem.v1.InferenceService" in names

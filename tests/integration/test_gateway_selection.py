"""What a client asks of the selection, as it reaches the prefill worker."""

from typing import Any

import grpc.aio
import pytest

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.errors import InvalidRequestError
from shared.rpc.status import error_from_rpc
from shared.types.options import RequestOptions, TokenRange
from tests.support.gateway_rig import Rig

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "A long text. " * 20 + "Who?"},
]
QUESTION = "Who?<|im_end|>\n<|im_start|>assistant\n"


def tail_tokens(rig: Rig) -> int:
    return len(rig.simulation.tokenizer.encode(QUESTION, add_special_tokens=False))


async def test_rest_passes_ranges_and_parts_on(rig: Rig) -> None:
    tandem = {"protect": [[0, 3], "system", "question"], "window": "question", "mass": 0.9}
    response = await rig.chat(messages=MESSAGES, tandem=tandem)
    assert response.status_code == 200
    assert "x-ignored-params" not in response.headers
    (seen,) = rig.simulation.options
    prompt_tokens = response.json()["usage"]["prompt_tokens"]
    assert seen.mass == 0.9
    assert seen.observation_window == tail_tokens(rig)
    assert seen.protect[0] == TokenRange(0, 3)
    assert seen.protect[1].start == 0
    start = prompt_tokens - tail_tokens(rig)
    assert seen.protect[-1] == TokenRange(start, start + len("Who?"))


async def test_nothing_is_asked_by_default(rig: Rig) -> None:
    await rig.chat()
    assert rig.simulation.options == [RequestOptions()]


async def test_completions_take_ranges_but_no_parts(rig: Rig) -> None:
    response = await rig.complete(tandem={"protect": [[0, 1]], "window": 12})
    assert response.status_code == 200
    assert rig.simulation.options[0].protect == (TokenRange(0, 1),)
    assert rig.simulation.options[0].observation_window == 12
    for tandem, param in (
        ({"protect": ["system"]}, "tandem.protect"),
        ({"window": "question"}, "tandem.window"),
    ):
        refused = await rig.complete(tandem=tandem)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("messages", "tandem", "param"),
    [
        (MESSAGES[:1], {"protect": ["last_user"]}, "tandem.protect"),
        (MESSAGES[:1], {"window": "question"}, "tandem.window"),
        (MESSAGES, {"protect": ["tools"]}, "tandem.protect"),
        (MESSAGES, {"mass": 0.5, "keep_rate": 0.5}, "tandem.mass"),
    ],
)
async def test_rest_refuses(
    rig: Rig, messages: list[dict[str, str]], tandem: dict[str, Any], param: str
) -> None:
    response = await rig.chat(messages=messages, tandem=tandem)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert rig.simulation.options == []


async def generate(rig: Rig, **fields: Any) -> None:
    async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(**fields)
        async for _ in stub.Generate(request):
            pass


def conversation() -> inference_pb2.Conversation:
    return inference_pb2.Conversation(
        messages=[
            inference_pb2.ChatMessage(role=message["role"], content=message["content"])
            for message in MESSAGES
        ]
    )


async def test_grpc_passes_ranges_and_parts_on(rig: Rig) -> None:
    options = common_pb2.RequestOptions(
        protect=[common_pb2.TokenRange(start=0, end=3)], max_rate=0.5
    )
    await generate(
        rig,
        conversation=conversation(),
        options=options,
        protect_parts=[inference_pb2.PROMPT_PART_LAST_USER],
        question_window=True,
    )
    (seen,) = rig.simulation.options
    assert seen.protect[0] == TokenRange(0, 3)
    assert seen.protect[1].end - seen.protect[1].start > 100
    assert (seen.observation_window, seen.max_rate) == (tail_tokens(rig), 0.5)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": "hi", "question_window": True}, "tandem.window"),
        (
            {"text": "hi", "protect_parts": [inference_pb2.PROMPT_PART_SYSTEM]},
            "tandem.protect",
        ),
        (
            {"conversation": conversation(), "protect_parts": [0]},
            "protect_parts",
        ),
        (
            {
                "conversation": conversation(),
                "question_window": True,
                "options": common_pb2.RequestOptions(observation_window=9),
            },
            "question_window",
        ),
        (
            {
                "text": "hi",
                "options": common_pb2.RequestOptions(protect=[common_pb2.TokenRange(start=3)]),
            },
            "tandem.protect",
        ),
    ],
)
async def test_grpc_refuses(rig: Rig, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(rig, **fields)
    error = error_from_rpc(caught.value)
    assert isinstance(error, InvalidRequestError)
    assert error.param == param

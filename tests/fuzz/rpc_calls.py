"""Calls of every gRPC method with bytes that are no request, or a request that makes no sense."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from protos.tandem.v1 import control_pb2, decode_pb2, inference_pb2, prefill_pb2, transfer_pb2
from shared.rpc.options import MAX_MESSAGE_BYTES
from tests.fuzz.exchange import LEAVE_S, Outcome
from tests.fuzz.proto_messages import any_message, damaged

Code = grpc.StatusCode

NEVER = frozenset({Code.INTERNAL, Code.UNKNOWN, Code.DATA_LOSS})
"""Statuses that mean a defect of ours."""

_OWN_SIDE = "Internal error from Core"
"""What this side's library makes of a call that ended while it still wrote."""

DRAIN = "/tandem.v1.ControlService/Drain"
"""Is obeyed when it can be read."""

_FILES = (
    inference_pb2,
    prefill_pb2,
    decode_pb2,
    control_pb2,
    transfer_pb2,
    health_pb2,
    reflection_pb2,
)
_OWN = {
    "gateway": ("InferenceService", "Health", "ServerReflection"),
    "prefill": ("PrefillService", "ControlService", "Health"),
    "decode": ("DecodeService", "TransferService", "ControlService", "Health"),
}
_ODD_METHODS = (
    "/", "//", "/x", "/tandem.v1.InferenceService/", "/tandem.v1.InferenceService/generate",
    "/tandem.v1.PrefillService/Prefill/x", "/tandem.v2.DecodeService/Decode",
    "/grpc.channelz.v1.Channelz/GetTopChannels", "/" + "a" * 3_000,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Method:
    """A method that can be called with bytes."""

    path: str
    """As in the request's head."""
    request: type[Message]
    """What it takes."""
    service: str
    """Short name of its service."""


def _methods() -> tuple[Method, ...]:
    return tuple(
        _method(method)
        for module in _FILES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    )


def _method(method: MethodDescriptor) -> Method:
    service = method.containing_service
    request: type[Message] = GetMessageClass(method.input_type)
    return Method(f"/{service.full_name}/{method.name}", request, service.name)


METHODS = _methods()
"""Every method of every service."""

OWN_METHODS = {
    role: tuple(method for method in METHODS if method.service in services)
    for role, services in _OWN.items()
}
"""Those that a role has."""


async def call(
    channel: grpc.aio.Channel,
    path: str,
    messages: list[bytes],
    *,
    metadata: tuple[tuple[str, str | bytes], ...] = (),
    timeout_s: float = LEAVE_S,
    leave_after: int = -1,
) -> tuple[Code, str, list[bytes]]:
    """Status, details and answers of one call, whatever kind the method is.

    Args:
        channel: to the server.
        path: the method.
        messages: serialised requests.
        metadata: of the call.
        timeout_s: its deadline.
        leave_after: answers after which the client cancels; -1 for never.
    """

    async def requests() -> AsyncIterator[bytes]:
        for message in messages:
            yield message

    answers: list[bytes] = []
    method: Any = channel.stream_stream(path)
    stream = method(requests(), timeout=timeout_s, metadata=metadata)
    try:
        if leave_after == 0:
            await asyncio.sleep(0)
            stream.cancel()
        async for answer in stream:
            answers.append(answer)
            if len(answers) == leave_after:
                stream.cancel()
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or "", answers
    except asyncio.CancelledError:
        if not stream.cancelled():
            raise
        return Code.CANCELLED, "", answers
    return await stream.code(), "", answers


def judged(code: Code, details: str) -> Outcome:
    """Whether a status is one that callers may see."""
    if details == _OWN_SIDE:
        return Outcome("over before it was sent")
    wrong = f"{code.name}: {details[:300]}" if code in NEVER else ""
    return Outcome(code.name, wrong)


async def random_bytes(rng: Random, role: str, channel: grpc.aio.Channel) -> Outcome:
    """Any bytes to any method."""
    method = _any_method(rng, role)
    raw = rng.randbytes(rng.choice([0, 1, 2, 8, 40, 400, 9_000]))
    return await _send(rng, channel, method, raw)


async def odd_messages(rng: Random, role: str, channel: grpc.aio.Channel) -> Outcome:
    """A message that can be read and makes no sense."""
    method = _any_method(rng, role)
    raw = any_message(rng, method.request).SerializeToString()
    return await _send(rng, channel, method, raw, leave_after=rng.choice([-1, -1, 0, 1, 2]))


async def damaged_messages(rng: Random, role: str, channel: grpc.aio.Channel) -> Outcome:
    """A message with damaged bytes; addresses stay whole, for a damaged one may be anybody's."""
    method = _any_method(rng, role)
    message: Any = any_message(rng, method.request)
    if "targets" in message.DESCRIPTOR.fields_by_name:
        message.ClearField("targets")
    raw = damaged(rng, message.SerializeToString())
    return await _send(rng, channel, method, raw)


async def odd_calls(rng: Random, role: str, channel: grpc.aio.Channel) -> Outcome:
    """Unknown methods, metadata that is too much, deadlines that are over, messages too large."""
    kind = rng.randrange(5)
    method = _any_method(rng, role)
    raw = b"" if method.path != DRAIN else b"\xff"
    if kind == 0:
        return judged(*(await call(channel, rng.choice(_ODD_METHODS), [raw]))[:2])
    if kind == 1:
        size = rng.choice([500, 9_000, 17_000, 40_000])
        key = rng.choice(["x", "x-request-id", "traceparent", "tandem-handoff-token-bin", "x-bin"])
        value: str | bytes = rng.randbytes(size) if key.endswith("-bin") else "v" * size
        return judged(*(await call(channel, method.path, [raw], metadata=((key, value),)))[:2])
    if kind == 2:
        timeout_s = rng.choice([0.0, 1e-6, 0.001, 0.005])
        return judged(*(await call(channel, method.path, [raw], timeout_s=timeout_s))[:2])
    if kind == 3:
        return judged(*(await call(channel, method.path, [raw], leave_after=0))[:2])
    many = [raw] * rng.choice([0, 2, 30])
    if rng.random() < 0.1:
        many = [b"\xff" * (MAX_MESSAGE_BYTES + 1)]
    return judged(*(await call(channel, method.path, many))[:2])


def obeyed(method: str, raw: bytes) -> bool:
    """Whether these bytes would take a worker out of service."""
    if method != DRAIN:
        return False
    try:
        control_pb2.DrainRequest.FromString(raw)
    except DecodeError:
        return False
    return True


def _any_method(rng: Random, role: str) -> Method:
    return rng.choice(METHODS if rng.random() < 0.1 else OWN_METHODS[role])


async def _send(
    rng: Random, channel: grpc.aio.Channel, method: Method, raw: bytes, *, leave_after: int = -1
) -> Outcome:
    if obeyed(method.path, raw):
        raw = b"\xff"
    messages = [raw] * rng.choice([1, 1, 1, 2])
    code, details, _ = await call(channel, method.path, messages, leave_after=leave_after)
    return judged(code, details)


CASES = {
    "random bytes": random_bytes,
    "odd messages": odd_messages,
    "damaged messages": damaged_messages,
    "odd calls": odd_calls,
}
"""Every kind of call."""

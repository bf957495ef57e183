"""What every transport over the network asks and shows, and how it learns that a call is over."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio

from protos.tandem.v1 import transfer_pb2
from shared.errors import HandoffError, TandemError, TransportError
from shared.rpc.status import error_from_rpc
from shared.transport.base import Grant
from shared.transport.hello import Peer, check_peer
from shared.wire.identity import identity_from_pb, identity_to_pb
from shared.wire.place import place_to_pb

CONNECT_SECONDS = 3.0
"""Longest wait for a peer that does not answer."""

TOKEN_KEY = "tandem-handoff-token-bin"  # noqa: S105  a metadata key, not a secret
"""Metadata of a call that shows a grant's token."""

_HELLO_METHOD = "/tandem.v1.TransferService/Hello"


async def say_hello(
    channel: grpc.aio.Channel, *, address: str, own: Peer, grant: Grant
) -> transfer_pb2.HelloResponse:
    """Compares both sides.

    Raises:
        TransportError: unreachable, restarted since the grant, or another model or protocol.
    """
    hello = channel.unary_unary(
        _HELLO_METHOD,
        request_serializer=transfer_pb2.HelloRequest.SerializeToString,
        response_deserializer=transfer_pb2.HelloResponse.FromString,
    )
    request = transfer_pb2.HelloRequest(
        protocol=own.protocol,
        model=identity_to_pb(own.model),
        incarnation=own.incarnation,
        place=place_to_pb(own.place),
    )
    try:
        answer = await hello(request, timeout=CONNECT_SECONDS, wait_for_ready=True)
    except grpc.aio.AioRpcError as error:
        raise transfer_error(error, address) from error
    peer = Peer(
        model=identity_from_pb(answer.model),
        incarnation=answer.incarnation,
        protocol=answer.protocol,
    )
    check_peer(own, peer, expected_incarnation=grant.incarnation)
    return answer


def token_metadata(grant: Grant) -> tuple[tuple[str, bytes], ...]:
    """Metadata of a call that names a granted slot."""
    return ((TOKEN_KEY, grant.token),)


def token_of(context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    """The token that a call shows; empty when it shows none."""
    for key, value in context.invocation_metadata() or ():
        if key == TOKEN_KEY and isinstance(value, bytes):
            return value
    return b""


@asynccontextmanager
async def answers_of(
    address: str, *, fail: Callable[[TandemError], Awaitable[None]]
) -> AsyncIterator[None]:
    """Around the reading of a receiver's answers: however that ends, `fail` is told why.

    Args:
        address: the receiver's.
        fail: keeps the first reason; after a transfer that ended well nobody asks for it.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        await fail(transfer_error(error, address))
    except asyncio.CancelledError:
        await fail(TransportError("the transfer was cancelled while it wrote; start a new attempt"))
        raise
    else:
        await fail(
            TransportError(
                f"{address} ended the transfer without a reason: it is shutting down; "
                "try another worker"
            )
        )


def transfer_error(error: grpc.aio.AioRpcError, address: str) -> TandemError:
    """What a failed call means for the handoff; a named refusal stays what it is."""
    meaning = error_from_rpc(error)
    if isinstance(meaning, HandoffError):
        return meaning
    return TransportError(
        f"the transfer to {address} broke off ({error.code().name}: {meaning.message}): the worker "
        "died, restarted or cannot be reached; start a new attempt, on another worker if it recurs"
    )

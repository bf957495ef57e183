"""Stubs of the workers' services, one a channel."""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import grpc.aio

from shared.rpc.channel_pool import ChannelPool

S = TypeVar("S")


class Stubs(Generic[S]):
    """Makes a stub at the first call on a channel: registering methods takes longer than a call.

    Args:
        channels: one an address; a channel that the pool lets go takes its stub along.
        make: makes a stub.
    """

    def __init__(self, channels: ChannelPool, make: Callable[[grpc.aio.Channel], S]) -> None:
        self._channels = channels
        self._make = make
        self._made: WeakKeyDictionary[grpc.aio.Channel, S] = WeakKeyDictionary()

    def to(self, address: str) -> S:
        """The stub for `host:port`; call it inside the loop."""
        channel = self._channels.get(address)
        stub = self._made.get(channel)
        if stub is None:
            stub = self._made[channel] = self._make(channel)
        return stub

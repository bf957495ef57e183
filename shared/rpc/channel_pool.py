"""One channel an address, opened on first use; renewed certificates get new connections."""

import asyncio
from collections import OrderedDict

import grpc.aio

from shared.rpc.channel import open_channel
from shared.rpc.tls import PeerTls
from shared.telemetry.certificates import TlsMaterial

RETIRE_S = 600.0
"""How long calls on a connection with an old certificate may go on, in seconds."""


class ChannelPool:
    """Opens channels on first use and keeps them.

    Args:
        tls: mutual TLS with the peers; plain text without.
        own_connection: channels for bulk data, apart from those for calls.
        max_channels: addresses kept; the one unused longest goes first. 0 keeps all.
    """

    def __init__(
        self, *, tls: PeerTls | None = None, own_connection: bool = False, max_channels: int = 0
    ) -> None:
        self._tls = tls
        self._own_connection = own_connection
        self._max_channels = max_channels
        self._open: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._material: TlsMaterial | None = None
        self._closing: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`; call it inside the loop."""
        self._renew()
        if address not in self._open:
            while self._max_channels and len(self._open) >= self._max_channels:
                _, oldest = self._open.popitem(last=False)
                self._close_later(oldest, grace_s=None)
            self._open[address] = open_channel(
                address, own_connection=self._own_connection, tls=self._tls
            )
        self._open.move_to_end(address)
        return self._open[address]

    async def close(self) -> None:
        """Closes all; running calls are cancelled."""
        closing, self._closing = self._closing, {}
        for task in closing:
            task.cancel()
        await asyncio.gather(*closing, return_exceptions=True)
        channels = [*closing.values(), *self._open.values()]
        self._open.clear()
        for channel in channels:
            await channel.close()

    def _renew(self) -> None:
        """Leaves channels with old certificates to the calls that they still carry."""
        if self._tls is None:
            return
        current = self._tls.certificates.current()
        if current is self._material:
            return
        self._material = current
        while self._open:
            _, channel = self._open.popitem()
            self._close_later(channel, grace_s=RETIRE_S)

    def _close_later(self, channel: grpc.aio.Channel, *, grace_s: float | None) -> None:
        task = asyncio.ensure_future(channel.close(grace_s))
        self._closing[task] = channel
        task.add_done_callback(lambda done: self._closing.pop(done, None))

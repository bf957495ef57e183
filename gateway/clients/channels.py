"""One channel a worker address, shared by all calls to it."""

import grpc.aio

from shared.rpc.channel import open_channel


class Channels:
    """Opens channels on first use and keeps them."""

    def __init__(self) -> None:
        self._open: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to `host:port`."""
        if address not in self._open:
            self._open[address] = open_channel(address)
        return self._open[address]

    async def close(self) -> None:
        """Closes all; running calls are cancelled."""
        while self._open:
            _, channel = self._open.popitem()
            await channel.close()

"""The gateway's channels: one a worker address, shared by all calls to it."""

from shared.rpc.channel_pool import ChannelPool


class Channels(ChannelPool):
    """Opens channels on first use and keeps them."""

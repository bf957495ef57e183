"""Channels to other roles."""

import grpc.aio

from shared.rpc.carrying_channel import CarryingChannel
from shared.rpc.options import ChannelOptions, client_options
from shared.rpc.tls import PeerTls, channel_credentials


def open_channel(
    address: str, *, own_connection: bool = False, tls: PeerTls | None = None
) -> grpc.aio.Channel:
    """A channel to `host:port` that hands on request id and trace; close it when done.

    Args:
        address: host:port of a worker.
        own_connection: for bulk data; shares no connection and carries neither id nor trace.
        tls: speak mutual TLS; without, the traffic is plain text: keep workers on loopback or on a
            private network then.
    """
    options = client_options(own_connection=own_connection)
    channel = _connected(address, options, tls)
    return channel if own_connection else CarryingChannel(channel)


def _connected(address: str, options: ChannelOptions, tls: PeerTls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    if tls.name:
        options.append(("grpc.ssl_target_name_override", tls.name))
    credentials = channel_credentials(tls.certificates.current())
    return grpc.aio.secure_channel(address, credentials, options=options)

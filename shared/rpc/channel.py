"""Channels to other roles."""

import grpc.aio

from shared.rpc.interceptors import client_interceptors
from shared.rpc.options import client_options


def open_channel(address: str, *, own_connection: bool = False) -> grpc.aio.Channel:
    """A channel to `host:port` that hands the current request id on; close it when done.

    The traffic is plain text: keep workers on loopback or on a private network.

    Args:
        address: host:port of a worker.
        own_connection: for bulk data; neither shares a connection nor carries a request id.
    """
    return grpc.aio.insecure_channel(
        address,
        options=client_options(own_connection=own_connection),
        interceptors=None if own_connection else client_interceptors(),
    )

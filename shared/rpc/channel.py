"""Channels to other roles."""

import grpc.aio

from shared.rpc.interceptors import client_interceptors
from shared.rpc.options import client_options
from shared.rpc.tls import PeerTls, channel_credentials
from shared.rpc.trace_interceptors import trace_client_interceptors


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
    interceptors = (
        None if own_connection else [*client_interceptors(), *trace_client_interceptors()]
    )
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    if tls.name:
        options.append(("grpc.ssl_target_name_override", tls.name))
    credentials = channel_credentials(tls.certificates.current())
    return grpc.aio.secure_channel(address, credentials, options=options, interceptors=interceptors)

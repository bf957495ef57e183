"""The one place of channel and server options, so that both ends always agree."""

from shared.config.version import package_version

MAX_MESSAGE_BYTES = 16 * 2**20
"""Largest message either end sends or accepts."""

MAX_METADATA_BYTES = 16 * 2**10
"""Most bytes of a call's metadata; the status details that servers send fit as well."""

ChannelOptions = list[tuple[str, str | int]]
"""Key-value pairs as grpc takes them."""


def client_options(*, own_connection: bool = False) -> ChannelOptions:
    """Options of every channel.

    Args:
        own_connection: do not share a connection with other channels to the same address, so that
            bulk data does not stand in the way of control calls.
    """
    return [
        *_common(),
        ("grpc.primary_user_agent", f"tandem/{package_version()}"),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name, what one attempt to connect may take: a busy machine needs its time.
        ("grpc.min_reconnect_backoff_ms", 3_000),
        # Until the next attempt a call only hears of the last failure, even if the peer is back.
        ("grpc.max_reconnect_backoff_ms", 100),
        # Retries are decided by the gateway, which knows what the client has already seen.
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", int(own_connection)),
    ]


def server_options() -> ChannelOptions:
    """Options of every server; a busy port is an error instead of being shared."""
    return [
        *_common(),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", 1_024),
        # Clients ping every 30 s through long silent calls; anything slower than 10 s is welcome.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def _common() -> ChannelOptions:
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]

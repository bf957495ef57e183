"""Options that both ends must agree on."""

from shared.rpc.options import MAX_MESSAGE_BYTES, client_options, server_options


def test_limits_and_keepalive_are_the_same_on_both_ends() -> None:
    client, server = dict(client_options()), dict(server_options())
    for key in (
        "grpc.max_send_message_length",
        "grpc.max_receive_message_length",
        "grpc.keepalive_time_ms",
        "grpc.keepalive_permit_without_calls",
    ):
        assert client[key] == server[key]
    assert client["grpc.max_send_message_length"] == MAX_MESSAGE_BYTES == 16 * 2**20


def test_servers_tolerate_the_clients_pings() -> None:
    client, server = dict(client_options()), dict(server_options())
    allowed = int(server["grpc.http2.min_ping_interval_without_data_ms"])
    assert allowed <= int(client["grpc.keepalive_time_ms"])
    assert server["grpc.http2.max_ping_strikes"] == 0
    assert server["grpc.so_reuseport"] == 0


def test_bulk_data_has_a_connection_of_its_own() -> None:
    assert dict(client_options(own_connection=True))["grpc.use_local_subchannel_pool"] == 1
    assert dict(client_options())["grpc.use_local_subchannel_pool"] == 0

"""Channels to a gateway, with the options that its server expects."""

import grpc
import grpc.aio

from gateway.sdk.settings import ClientSettings, Tls
from shared.errors import ConfigError
from shared.rpc.options import ChannelOptions, client_options


def open_channel(settings: ClientSettings) -> grpc.Channel:
    """A channel for threads.

    Raises:
        ConfigError: a file of the TLS settings cannot be read.
    """
    if settings.tls is None:
        return grpc.insecure_channel(settings.address, options=client_options())
    return grpc.secure_channel(
        settings.address, _credentials(settings.tls), options=_options(settings.tls)
    )


def open_aio_channel(settings: ClientSettings) -> grpc.aio.Channel:
    """A channel for the running event loop.

    Raises:
        ConfigError: a file of the TLS settings cannot be read.
    """
    if settings.tls is None:
        return grpc.aio.insecure_channel(settings.address, options=client_options())
    return grpc.aio.secure_channel(
        settings.address, _credentials(settings.tls), options=_options(settings.tls)
    )


def _options(tls: Tls) -> ChannelOptions:
    named = [("grpc.ssl_target_name_override", tls.name)] if tls.name else []
    return [*client_options(), *named]


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    if (tls.cert is None) != (tls.key is None):
        raise ConfigError(
            "a client's certificate and its key belong together, and one is missing; set cert and "
            "key, or neither"
        )
    try:
        ca, key, cert = (
            None if path is None else path.read_bytes() for path in (tls.ca, tls.key, tls.cert)
        )
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be read ({error.strerror}); correct the path or its rights"
        ) from error
    return grpc.ssl_channel_credentials(
        root_certificates=ca, private_key=key, certificate_chain=cert
    )

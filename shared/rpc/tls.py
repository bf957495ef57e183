"""gRPC credentials from certificates that are replaced while the process runs."""

from dataclasses import dataclass

import grpc

from shared.telemetry.certificates import Certificates, TlsMaterial


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """How this process connects to other roles."""

    certificates: Certificates
    """Own certificate, and the authorities that peers must be certified by."""
    name: str = ""
    """Name that the peers' certificates carry; empty expects the host of their address."""

    @classmethod
    def of(cls, certificates: Certificates | None, *, name: str) -> "PeerTls | None":
        """TLS with these certificates; None, which is plain text, when there are none."""
        return None if certificates is None else cls(certificates=certificates, name=name)


def server_credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Credentials whose every handshake uses the current files.

    With authorities among the files, clients must show a certificate of one of them.
    """
    in_use = certificates.current()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal in_use
        current = certificates.current()
        if current is in_use:
            return None
        in_use = current
        return _configuration(current)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(in_use),
        changed,  # type: ignore[arg-type]  # None means unchanged, which the stubs do not know
        require_client_authentication=in_use.ca is not None,
    )


def channel_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """Credentials of one connection: this side shows its certificate, too."""
    return grpc.ssl_channel_credentials(
        root_certificates=material.ca,
        private_key=material.key,
        certificate_chain=material.cert,
    )


def _configuration(material: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.cert)], root_certificates=material.ca
    )

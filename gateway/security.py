"""The gateway's locks, put together from its settings: keys, certificates, worker addresses."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import grpc.aio
import structlog
from starlette.types import ASGIApp

from gateway.config import GatewayConfig
from gateway.keys.ring import KeyRing
from gateway.routes.authentication import Authentication
from gateway.rpc.authentication import AuthenticationInterceptor
from shared.discovery.address_guard import AddressGuard
from shared.discovery.card import WorkerCard
from shared.rpc.tls import PeerTls
from shared.telemetry.certificates import Certificates, mutual_certificates, tls_files
from shared.telemetry.ports import is_loopback

FetchCard = Callable[[str], Awaitable[WorkerCard]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Who gets in, what is encrypted, where the gateway connects to."""

    ring: KeyRing | None
    """API keys; None lets everybody in."""
    public: Certificates | None
    """Of the REST and gRPC ports; None is plain text."""
    peer: PeerTls | None
    """For calls to workers; None is plain text."""
    guard: AddressGuard
    """Which workers may be connected to."""

    @classmethod
    def from_config(cls, config: GatewayConfig) -> "Security":
        """Reads the files that the settings name.

        Raises:
            ConfigError: a file cannot be used, or settings that belong together are not all set.
        """
        public = tls_files(cert=config.tls_cert, key=config.tls_key)
        peer = mutual_certificates(
            cert=config.worker_tls_cert,
            key=config.worker_tls_key,
            ca=config.worker_tls_ca,
            setting="worker_tls",
        )
        if config.api_keys is None and not is_loopback(config.host):
            _log.warning("no API keys: everybody who reaches this host is served; set api_keys")
        return cls(
            ring=None if config.api_keys is None else KeyRing(config.api_keys),
            public=None if public is None else Certificates(public),
            peer=PeerTls.of(peer, name=config.worker_tls_name),
            guard=AddressGuard(config.worker_networks),
        )

    def around(self, app: ASGIApp, *, on_refused: Callable[[str], None]) -> ASGIApp:
        """The REST application behind its keys, when there are any."""
        if self.ring is None:
            return app
        return Authentication(app, self.ring, on_refused=on_refused)

    def interceptors(
        self, *, on_refused: Callable[[str], None]
    ) -> Sequence[grpc.aio.ServerInterceptor]:
        """The same for the gRPC port."""
        if self.ring is None:
            return ()
        return (AuthenticationInterceptor(self.ring, on_refused=on_refused),)

    def guarded(self, fetch: FetchCard) -> FetchCard:
        """A question to a worker that is only asked at an address that is allowed."""

        async def checked(address: str) -> WorkerCard:
            await self.guard.check(address)
            return await fetch(address)

        return checked

"""What a decode worker needs of a prefill engine that runs beside it, in its own process.

The engine is another service's, and services meet on the wire alone: whoever starts the process
brings it along (`deploy/decode_worker.py`). It answers PrefillService on this worker's own port and
delivers to this worker by Reserve, the landing slab and Commit, as every prefill worker does.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import grpc.aio
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from decode_service.config import DecodeConfig
from shared.model.weights import LoadedModel
from shared.telemetry.admin import LOCAL_PREFILL_METRICS, metrics_response
from shared.telemetry.certificates import Certificates
from shared.transport.base import LocalEndpoint


class LocalPrefill(Protocol):
    """Reads prompts with the weights that the worker has already."""

    @property
    def service_names(self) -> Sequence[str]:
        """Full names of what it adds to the server, for health and reflection."""
        ...

    @property
    def routes(self) -> Sequence[Route]:
        """Its pages on the admin port."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it takes prompts: it serves, makes progress and does not drain."""
        ...

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait for it."""
        ...

    @property
    def note(self) -> str:
        """What an operator should look at; empty: nothing."""
        ...

    async def open(
        self,
        loaded: LoadedModel,
        *,
        server: grpc.aio.Server,
        worker_id: str,
        endpoint: LocalEndpoint,
        certificates: Certificates | None,
    ) -> None:
        """Builds the engine, warms it up and adds its service to a server that has not started.

        Args:
            loaded: model and profile; shared, and changed by nobody.
            server: of the decode worker.
            worker_id: of the decode worker.
            endpoint: the landing slab of the decode worker.
            certificates: of the decode worker, which it connects to; None: plain text.

        Raises:
            TandemError: a setting is wrong.
        """
        ...

    async def drain(self, cap_s: float) -> None:
        """Takes no new prompts, finishes those that are here, stops what is left at the cap."""
        ...

    async def close(self) -> None:
        """Ends everything; what has not opened is fine, and so is a second time."""
        ...


class OpenLocalPrefill(Protocol):
    """Makes the engine of a worker with these settings; nothing is loaded yet."""

    def __call__(self, config: DecodeConfig, *, settings_file: Path | None) -> LocalPrefill:
        """See `LocalPrefill`.

        Raises:
            ConfigError: its own settings are wrong.
        """
        ...


def routes_of(local: LocalPrefill | None) -> Sequence[Route]:
    """Its pages; without an engine the same metrics page, empty: it can be scraped all the same."""
    return (Route(LOCAL_PREFILL_METRICS, _nothing),) if local is None else local.routes


async def _nothing(request: Request) -> Response:
    return metrics_response(CollectorRegistry(), accept=request.headers.get("accept", ""))

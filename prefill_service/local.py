"""A prefill engine inside a decode worker: the worker's weights, port and slab, and its own queue.

The gateway speaks to it as to any prefill worker. Its KV goes to the worker around it by Reserve,
the landing slab and Commit, so that pages, leases and refusals are those of every handoff; only the
bytes need no wire (transport `loopback`).
"""

import asyncio
import os
import uuid
from collections.abc import Sequence

import grpc.aio
import structlog
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from prefill_service.config import PrefillConfig
from prefill_service.engine.attention import probe_for
from prefill_service.engine.recorder import MetricsRecorder
from prefill_service.engine.watchdog import Watchdog
from prefill_service.parts import Parts
from prefill_service.rpc.services import PREFILL_NAME, add_prefill_service
from shared.config.exit_codes import ExitCode
from shared.config.fingerprint import config_fingerprint
from shared.model.weights import LoadedModel
from shared.telemetry.admin import LOCAL_PREFILL_METRICS, metrics_response
from shared.telemetry.certificates import Certificates
from shared.telemetry.metrics import HealthMetrics, PrefillMetrics
from shared.transport.base import LocalEndpoint

_log = structlog.get_logger(__name__)


class LocalPrefill:
    """The engine; `open`, serve, `drain`, `close`.

    Args:
        config: settings of the engine; ports, names and addresses are the decode worker's.
    """

    service_names = (PREFILL_NAME,)
    """Full names, for health and reflection."""

    def __init__(self, config: PrefillConfig) -> None:
        self.config = config
        self.worker_id = ""
        self.incarnation = uuid.uuid4().hex
        self.registry = CollectorRegistry()
        self.recorder = MetricsRecorder(
            PrefillMetrics(self.registry), health=HealthMetrics(self.registry)
        )
        self.certificates: Certificates | None = None
        self._parts: Parts | None = None
        self._watchdog: Watchdog | None = None
        self._watching: asyncio.Task[None] | None = None
        self._draining = False

    @property
    def routes(self) -> Sequence[Route]:
        """Its metrics, beside those of the decode worker, some of which have the same names."""
        return (Route(LOCAL_PREFILL_METRICS, self._metrics),)

    @property
    def parts(self) -> Parts:
        """What was built."""
        assert self._parts is not None, "not open"
        return self._parts

    @property
    def ready(self) -> bool:
        """Whether it takes prompts."""
        watchdog = self._watchdog
        return watchdog is not None and watchdog.healthy and not self._draining

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that wait."""
        return 0 if self._parts is None else self._parts.engine.load().queued_tokens

    @property
    def note(self) -> str:
        """A stall, in words; empty without one."""
        if self._watchdog is None or self._watchdog.healthy:
            return ""
        return f"local prefill makes no progress for {self.config.stall_s:g} s with work at hand"

    async def open(
        self,
        loaded: LoadedModel,
        *,
        server: grpc.aio.Server,
        worker_id: str,
        endpoint: LocalEndpoint,
        certificates: Certificates | None,
    ) -> None:
        """Builds the engine, warms it up and adds PrefillService to a server.

        Args:
            loaded: model and profile, shared with the decode worker.
            server: the decode worker's, not started yet.
            worker_id: the decode worker's.
            endpoint: the decode worker's landing slab.
            certificates: the decode worker's; None: plain text.

        Raises:
            ConfigError: a setting is wrong.
        """
        self.worker_id, self.certificates = worker_id, certificates
        attention = await asyncio.to_thread(probe_for, loaded.model)
        parts = self._parts = Parts(loaded, attention=attention, owner=self, endpoint=endpoint)
        self.recorder.serves(
            role="prefill",
            model=parts.info.model.name,
            version=parts.info.version,
            config=config_fingerprint(self.config),
        )
        await asyncio.to_thread(parts.warm_up)
        add_prefill_service(
            server, engine=parts.engine, limits=parts.limits, grammars=parts.grammars
        )
        parts.engine.start()
        self._watchdog = Watchdog(
            parts.compute.stalled_seconds,
            stall_s=self.config.stall_s,
            exit_s=self.config.stall_exit_s,
            on_change=self._stall_changed,
            give_up=lambda: os._exit(ExitCode.FAILURE),
        )
        self._watching = asyncio.create_task(self._watchdog.run(), name="local-prefill-watchdog")

    async def drain(self, cap_s: float) -> None:
        """Takes no new prompts, finishes those that are here, stops what is left at the cap."""
        self._draining = True
        if self._parts is not None:
            await self._parts.engine.drain(cap_s)

    async def close(self) -> None:
        """Ends everything at once; what has not opened is fine, and so is a second time."""
        self._draining = True
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if self._parts is not None:
            await self._parts.close()
            self._parts.grammars.close()

    async def _stall_changed(self, healthy: bool) -> None:  # noqa: FBT001  the value is the argument
        _log.warning("local prefill", takes_prompts=healthy)

    async def _metrics(self, request: Request) -> Response:
        if self._parts is not None:
            self.recorder.refresh(self._parts.engine.load())
            self._parts.lanes.pairs.refresh_metrics()
        return metrics_response(self.registry, accept=request.headers.get("accept", ""))

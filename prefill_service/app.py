"""The wiring of a prefill worker: settings in, a serving worker out; names concrete classes."""

import asyncio
import json
import os
import uuid

import structlog
import torch
from prometheus_client import CollectorRegistry

from prefill_service.config import PrefillConfig
from prefill_service.engine.attention import probe_for
from prefill_service.engine.banner import banner, warn_of_buffer
from prefill_service.engine.engine import PrefillEngine
from prefill_service.engine.publisher import CardPublisher
from prefill_service.engine.readiness import ReadinessBoard
from prefill_service.engine.recorder import MetricsRecorder
from prefill_service.engine.watchdog import Watchdog
from prefill_service.parts import Parts
from prefill_service.rpc.services import SERVICE_NAMES, add_services
from shared.config.exit_codes import ExitCode
from shared.config.fingerprint import config_fingerprint
from shared.config.version import package_version
from shared.discovery.advertise import advertised_address
from shared.discovery.card import WorkerCard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.model.weights import LoadedModel, load_model
from shared.rpc.server import RpcServer, build_server
from shared.telemetry.admin import admin_server
from shared.telemetry.certificates import Certificates, mutual_certificates
from shared.telemetry.http_server import HttpServer
from shared.telemetry.metrics import HealthMetrics, PrefillMetrics
from shared.telemetry.spans import SpanOwner, SpanSource
from shared.telemetry.tracing import open_spans

_log = structlog.get_logger(__name__)


class PrefillApp:
    """One worker: `start`, serve until told otherwise, `drain`, `close`.

    Args:
        config: its settings.
        spans: where traces go; None: as the settings say.
    """

    def __init__(self, config: PrefillConfig, *, spans: SpanSource | None = None) -> None:
        self.config = config
        self.worker_id = config.worker_id or f"prefill-{uuid.uuid4().hex[:8]}"
        self.incarnation = uuid.uuid4().hex
        self.registry = CollectorRegistry()
        self.recorder = MetricsRecorder(
            PrefillMetrics(self.registry), health=HealthMetrics(self.registry)
        )
        self._spans = spans or open_spans(
            SpanOwner(role="prefill", worker_id=self.worker_id, version=package_version()),
            endpoint=config.otlp_endpoint,
            sample_ratio=config.otlp_sample_ratio,
        )
        self._board = ReadinessBoard(faults=config.faults_text)
        self._tasks: list[asyncio.Task[None]] = []
        self._drain_task: asyncio.Task[None] | None = None
        self.certificates: Certificates | None = None
        self._rpc: RpcServer | None = None
        self._admin: HttpServer | None = None
        self._parts: Parts | None = None
        self._publisher: CardPublisher | None = None

    # --- start --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Binds ports, loads the model and serves; after an error, `close` is still to be called.

        Raises:
            ConfigError: a setting is wrong or a port is taken.
            ModelLoadError: the model cannot be had.
        """
        config = self.config
        with self._board.startup("starting", "ports"):
            rpc, advertised = await self._open_ports(config)
        with self._board.startup("loading", "weights"):
            loaded = await asyncio.to_thread(self._load)
        with self._board.startup("loading", "engine"):
            attention = await asyncio.to_thread(probe_for, loaded.model)
            parts = self._parts = Parts(loaded, attention=attention, owner=self)
            info = parts.info
            self.recorder.serves(
                role="prefill",
                model=info.model.name,
                version=info.version,
                config=config_fingerprint(config),
            )
        with self._board.startup("loading", "warm-up"):
            await asyncio.to_thread(parts.warm_up)
        with self._board.startup("starting", "serving"):
            await self._serve(rpc, parts)
        with self._board.startup("starting", "register"):
            await self._register(parts, advertised)
        self._board.serving()
        await rpc.health.set_ready(True)
        warn_of_buffer(
            loaded.model.geometry(),
            max_model_len=parts.limits.max_model_len,
            buffer_bytes=config.buffer_bytes,
        )
        facts = banner(parts.info, loaded.profile)
        _log.info("ready", **facts, grpc=self.address, admin=self.admin_address)

    @property
    def address(self) -> str:
        """host:port of the gRPC server."""
        assert self._rpc is not None, "not started"
        return self._rpc.address

    @property
    def admin_address(self) -> str:
        """host:port of metrics and health."""
        assert self._admin is not None, "not started"
        return self._admin.address

    @property
    def engine(self) -> PrefillEngine:
        """The engine."""
        assert self._parts is not None, "not started"
        return self._parts.engine

    def ready_line(self) -> str:
        """The machine-readable line that goes to standard output."""
        fields = {
            "role": "prefill",
            "worker_id": self.worker_id,
            "address": self.address,
            "admin": self.admin_address,
        }
        return "TANDEM_READY " + json.dumps(fields)

    def _load(self) -> LoadedModel:
        config = self.config
        if config.threads:
            torch.set_num_threads(config.threads)
        return load_model(
            config.model,
            dtype=config.dtype,
            device=config.device,
            cache_dir=config.cache_dir,
            profile=config.profile,
            progress=self._board.progressed,
        )

    async def _serve(self, rpc: RpcServer, parts: Parts) -> None:
        parts.engine.start()
        add_services(
            rpc.server,
            engine=parts.engine,
            limits=parts.limits,
            grammars=parts.grammars,
            info=parts.info,
            start_drain=self.begin_drain,
        )
        await rpc.start()
        watchdog = Watchdog(
            parts.compute.stalled_seconds,
            stall_s=self.config.stall_s,
            exit_s=self.config.stall_exit_s,
            on_change=self._stall_changed,
            give_up=lambda: os._exit(ExitCode.FAILURE),
        )
        self._tasks.append(asyncio.create_task(watchdog.run(), name="prefill-watchdog"))

    async def _open_ports(self, config: PrefillConfig) -> tuple[RpcServer, str]:
        """Binds both ports; returns the server and the address that others reach it at."""
        self.certificates = mutual_certificates(
            cert=config.tls_cert, key=config.tls_key, ca=config.tls_ca
        )
        rpc = self._rpc = build_server(
            host=config.host,
            port=config.port,
            service_names=SERVICE_NAMES,
            spans=self._spans,
            certificates=self.certificates,
        )
        self._admin = admin_server(
            host=config.admin_host,
            port=config.admin_port,
            registry=self.registry,
            readiness=lambda: self._board.current,
            alive=self._alive,
            refresh=self._refresh,
            facts=self._facts,
        )
        await self._admin.start()
        advertised = advertised_address(
            bound=rpc.address,
            host=config.host,
            wanted=config.advertise_address,
            published=bool(config.redis_url),
        )
        return rpc, advertised

    async def _register(self, parts: Parts, address: str) -> None:
        if not self.config.redis_url:
            return
        card = WorkerCard.of(parts.info, address=address)
        discovery = RedisDiscovery(RedisSettings(url=self.config.redis_url))
        self._publisher = CardPublisher(discovery, card=card, load=parts.engine.load)
        await self._publisher.start()

    # --- health -------------------------------------------------------------------------------

    def _alive(self) -> bool:
        if self._parts is None or not self.config.stall_exit_s:
            return True
        return self._parts.compute.stalled_seconds() < self.config.stall_exit_s

    def _refresh(self) -> None:
        if self._parts is not None:
            self.recorder.refresh(self._parts.engine.load())
            self._parts.lanes.pairs.refresh_metrics()

    def _facts(self) -> dict[str, object]:
        """What health tells beside readiness: where KV waits, and how it gets to whom."""
        parts = self._parts
        if parts is None:
            return {}
        return {
            "kv_memory": parts.memory.facts,
            "kv_quarantine": parts.slabs.quarantine_facts,
            "pairs": parts.lanes.describe(),
        }

    async def _stall_changed(self, healthy: bool) -> None:  # noqa: FBT001  the value is the argument
        if self._drain_task is not None or self._rpc is None:
            return
        if healthy:
            self._board.serving()
        else:
            self._board.stalled(self.config.stall_s)
        await self._rpc.health.set_ready(healthy)

    # --- end ----------------------------------------------------------------------------------

    def begin_drain(self, timeout_s: float | None = None) -> None:
        """Takes no new prompts and finishes those that are here, within a cap; twice is fine.

        Args:
            timeout_s: the cap; None takes the configured one.
        """
        if self._drain_task is None:
            cap = self.config.drain_s if timeout_s is None else timeout_s
            self._drain_task = asyncio.create_task(self._drain(cap), name="prefill-drain")

    async def drain(self) -> None:
        """Begins a drain, when none has begun, and waits for its end."""
        self.begin_drain()
        assert self._drain_task is not None, "begin_drain sets it"
        await self._drain_task

    async def _drain(self, cap_s: float) -> None:
        self._board.draining()
        if self._rpc is not None:
            await self._rpc.health.set_ready(False)
        if self._parts is not None:
            self._parts.engine.start_drain()
            if self._publisher is not None:
                await self._publisher.publish()
            await self._parts.engine.drain(cap_s)

    async def close(self) -> None:
        """Ends everything at once; what has not started is fine, and so is a second time."""
        tasks = [*self._tasks, *([self._drain_task] if self._drain_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._publisher is not None:
            await self._publisher.close()
        if self._parts is not None:
            await self._parts.close()
        if self._rpc is not None:
            await self._rpc.stop(grace_s=1.0)
        if self._parts is not None:
            self._parts.grammars.close()  # calls that came until now may still have asked it
        if self._admin is not None:
            await self._admin.stop()
        await asyncio.to_thread(self._spans.close)

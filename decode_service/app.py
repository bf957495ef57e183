"""The wiring of a decode worker: settings in, a serving process out."""

import asyncio
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog
from prometheus_client import CollectorRegistry

from decode_service.config import DecodeConfig
from decode_service.engine.assembly import Core, build_core
from decode_service.engine.caretaker import CareSettings, Caretaker
from decode_service.engine.drain import drain
from decode_service.engine.drift import DriftCheck
from decode_service.engine.drift_alarm import DriftAlarm
from decode_service.engine.loading import load
from decode_service.engine.recorder import MetricsRecorder
from decode_service.engine.status import TokenRate, WorkerLoad, measure_load
from decode_service.engine.warm_up import warm_up
from decode_service.rpc import control_servicer, decode_servicer
from decode_service.rpc.control_servicer import CAPABILITIES, ControlServicer
from decode_service.rpc.decode_servicer import DecodeServicer
from decode_service.rpc.landing import LandingGround
from decode_service.rpc.local_prefill import LocalPrefill, routes_of
from decode_service.rpc.presence import Presence
from protos.tandem.v1 import control_pb2_grpc, decode_pb2_grpc
from shared.config.exit_codes import ExitCode
from shared.config.fingerprint import config_fingerprint
from shared.config.version import package_version
from shared.discovery.card import WorkerCard
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.errors import ConfigError
from shared.model.weights import LoadedModel
from shared.rpc.server import RpcServer, build_server
from shared.telemetry.admin import Readiness, admin_server
from shared.telemetry.certificates import Certificates, mutual_certificates
from shared.telemetry.metrics import DecodeMetrics, HandoffFailureMetrics, HealthMetrics
from shared.telemetry.spans import SpanOwner, SpanSource
from shared.telemetry.tracing import open_spans
from shared.transport import grpc_receiver
from shared.transport.hello import Peer
from shared.transport.instrumented import note_transports
from shared.transport.topology import read_topology
from shared.types.worker_info import WorkerInfo

ROLE = "decode"
STARTING = Readiness(ready=False, phase="starting", progress=0.0, detail="binding ports")
STOP_GRACE_S = 1.0

_log = structlog.get_logger(__name__)


class DecodeServer:
    """A decode worker with its gRPC server, admin pages and registration.

    Args:
        config: settings.
        spans: where traces go; None: as the settings say.
        local: the prefill engine of a worker that reads prompts itself.

    Raises:
        ConfigError: the settings want a prefill engine beside and this process has none.
    """

    def __init__(
        self,
        config: DecodeConfig,
        *,
        spans: SpanSource | None = None,
        local: LocalPrefill | None = None,
    ) -> None:
        if config.local_prefill_tokens and local is None:
            raise ConfigError(
                f"decode setting local_prefill_tokens is {config.local_prefill_tokens}, and this "
                "process has no prefill engine: start it with `tandem decode`, which brings one"
            )
        self.config = config
        self._local = local
        self.incarnation = uuid.uuid4().hex
        self.worker_id = config.worker_id or f"{ROLE}-{self.incarnation[:8]}"
        self.exit_code = ExitCode.OK
        self.finished = asyncio.Event()
        self._spans = spans or open_spans(
            SpanOwner(role=ROLE, worker_id=self.worker_id, version=package_version()),
            endpoint=config.otlp_endpoint,
            sample_ratio=config.otlp_sample_ratio,
        )
        self._registry = CollectorRegistry()
        self._handoffs = HandoffFailureMetrics(self._registry)
        self._rate = TokenRate(time.monotonic)
        self._drift_alarm = DriftAlarm(level=config.drift_alarm, clock=time.monotonic)
        self._phases: dict[str, float] = {}
        self._certificates: Certificates | None = None
        self._core: Core | None = None
        self._rpc: RpcServer | None = None
        self._recorder: MetricsRecorder | None = None
        self._landing: LandingGround | None = None
        self._presence: Presence | None = None
        self._care_task: asyncio.Task[None] | None = None
        self._drain_task: asyncio.Task[None] | None = None
        self._admin = admin_server(
            host=config.admin_host,
            port=config.admin_port,
            registry=self._registry,
            readiness=lambda: STARTING if self._presence is None else self._presence.readiness(),
            alive=lambda: self._presence is None or self._presence.alive,
            refresh=self._refresh_metrics,
            facts=lambda: {} if self._core is None else self._core.facts,
            more=routes_of(local),
        )

    @property
    def core(self) -> Core:
        """The working parts, once loaded."""
        assert self._core is not None, "the server has started"
        return self._core

    @property
    def rpc(self) -> RpcServer:
        """The gRPC server, once bound."""
        assert self._rpc is not None, "the server has started"
        return self._rpc

    @property
    def address(self) -> str:
        """host:port that peers connect to."""
        return self.config.advertise_address or self.rpc.address

    @property
    def admin_address(self) -> str:
        """host:port of the admin pages."""
        return self._admin.address

    async def start(self) -> None:
        """Binds both ports, loads, warms up, serves, registers; `stop` cleans up a failed start.

        Raises:
            TandemError: a port is busy, a setting is wrong, the model cannot be loaded.
        """
        await self._admin.start()
        self._rpc = self._bind()
        url = self.config.redis_url
        self._presence = Presence(
            self._rpc.health,
            load=self.present_load,
            note=self._note,
            publisher=RedisDiscovery(RedisSettings(url=url)) if url else None,
        )
        with self._timed("weights"):
            loaded = await asyncio.to_thread(load, self.config)
        with self._timed("cache"):
            recorder = self._make_recorder(loaded)
            self._core = build_core(
                self.config, loaded, recorder=recorder, on_drift=self._drift_checked
            )
            self._recorder = recorder
        with self._timed("transports"):
            landing = await asyncio.to_thread(self._open_landing)
        with self._timed("warm_up"):
            await asyncio.to_thread(self._warm_up, loaded)
        info = self._add_services(loaded, landing)
        if self._local is not None:
            with self._timed("local_prefill"):
                await self._local.open(
                    loaded,
                    server=self._rpc.server,
                    worker_id=self.worker_id,
                    endpoint=landing.endpoint(self._own(info)),
                    certificates=self._certificates,
                )
        self.core.worker.engine.start()
        await self._rpc.start()
        with self._timed("register"):
            await self._register(self._presence, info)
        _log.info(
            "ready",
            address=self.address,
            admin=self.admin_address,
            device=self.config.device,
            transports=",".join(info.transports),
            startup_s={name: round(seconds, 2) for name, seconds in self._phases.items()},
            **self.core.described(loaded.profile, max_batch=self.config.max_batch),
        )

    def ready_line(self) -> str:
        """The one line on standard output that launchers wait for."""
        body = {
            "role": ROLE,
            "worker_id": self.worker_id,
            "address": self.address,
            "admin": self.admin_address,
        }
        return "TANDEM_READY " + json.dumps(body)

    def present_load(self) -> WorkerLoad:
        """Present load."""
        core, local = self.core, self._local
        load = measure_load(
            core.worker,
            cache=core.memory.cache,
            slab=core.memory.slab,
            rate=self._rate,
            max_batch=self.config.max_batch,
        )
        if local is None:
            return load
        longest = min(self.config.local_prefill_tokens, core.memory.capacity.max_model_len)
        draining = load.draining or self._drain_task is not None
        return replace(
            load,
            draining=draining,
            queued_tokens=local.queued_tokens,
            local_prefill_tokens=longest if local.ready and not draining else 0,
        )

    def begin_drain(self, timeout_s: float | None = None) -> None:
        """Stops taking work, waits for what runs, then finishes; again changes nothing.

        A worker that has not loaded yet finishes at once.
        """
        if self._core is None:
            self.finished.set()
        elif self._drain_task is None:
            cap = self.config.drain_s if timeout_s is None else timeout_s
            self._drain_task = asyncio.create_task(self._drain(cap))

    async def stop(self) -> None:
        """Takes everything down in order; twice is fine."""
        for task in filter(None, (self._care_task, self._drain_task)):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._presence is not None:
            await self._presence.disappear()
        if self._local is not None:
            await self._local.drain(0.0)  # while this worker can still take back its grants
        if self._core is not None:
            await self._core.worker.engine.stop()  # clients hear why before their streams close
        if self._rpc is not None:
            await self._rpc.stop(grace_s=STOP_GRACE_S)
        if self._local is not None:
            await self._local.close()
        if self._landing is not None:
            await self._landing.close()
        if self._core is not None:
            self._core.close()  # calls that came until now may still have asked it
        await self._admin.stop()
        await asyncio.to_thread(self._spans.close)

    # --- start-up ---------------------------------------------------------------------------

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        assert self._presence is not None, "made before the first phase"
        self._presence.phase = phase
        started = time.monotonic()
        yield
        self._phases[phase] = time.monotonic() - started
        _log.info("start-up", phase=phase, seconds=round(self._phases[phase], 2))

    def _bind(self) -> RpcServer:
        modules = (decode_servicer, control_servicer, grpc_receiver)
        beside = () if self._local is None else self._local.service_names
        config = self.config
        self._certificates = mutual_certificates(
            cert=config.tls_cert, key=config.tls_key, ca=config.tls_ca
        )
        return build_server(
            host=config.host,
            port=config.port,
            service_names=[*(module.SERVICE_NAME for module in modules), *beside],
            spans=self._spans,
            certificates=self._certificates,
        )

    def _make_recorder(self, loaded: LoadedModel) -> MetricsRecorder:
        health = HealthMetrics(self._registry)
        name = self.config.model_name or loaded.name
        health.build_info.labels(role=ROLE, model=name, version=package_version()).set(1)
        health.config_info.labels(role=ROLE, config=config_fingerprint(self.config)).set(1)
        return MetricsRecorder(
            DecodeMetrics(self._registry),
            transfer=self._handoffs,
            health=health,
            rate=self._rate,
            num_layers=loaded.model.config.num_layers,
        )

    def _warm_up(self, loaded: LoadedModel) -> None:
        warm_up(
            self.core.runner,
            self.core.memory.cache,
            num_heads=loaded.model.config.num_heads,
            sparsity=loaded.profile.sparsity,
        )
        self.core.worker.intake.warm_up()

    def _open_landing(self) -> LandingGround:
        landing = self._landing = LandingGround(
            self.config.transports,
            required=self.config.require_transport,
            table=self.core.worker.table,
            slab=self.core.memory.slab,
            incarnation=self.incarnation,
        )
        note_transports(landing.chosen, self._handoffs)
        return landing

    def _add_services(self, loaded: LoadedModel, landing: LandingGround) -> WorkerInfo:
        core, server = self.core, self.rpc.server
        info = WorkerInfo(
            role=ROLE,
            capabilities=CAPABILITIES,
            worker_id=self.worker_id,
            incarnation=self.incarnation,
            model=core.identity,
            max_model_len=core.memory.capacity.max_model_len,
            version=package_version(),
            device=self.config.device,
            attention_backend=core.backend.name,
            rejected_backends=core.backend.rejections,
            transports=landing.chosen.names,
            rejected_transports=tuple(each.text for each in landing.chosen.rejected),
            profile=loaded.profile.label,
            methods_hash=loaded.profile.methods_hash,
            topology=core.memory.placed(read_topology(self.config.device)),
        )
        decode_pb2_grpc.add_DecodeServiceServicer_to_server(
            DecodeServicer(
                core.worker,
                worker_id=self.worker_id,
                incarnation=self.incarnation,
                transports=landing.chosen.names,
            ),
            server,
        )
        control_pb2_grpc.add_ControlServiceServicer_to_server(
            ControlServicer(info, load=self.present_load, drain=self.begin_drain), server
        )
        landing.serve(server, self._own(info))
        return info

    def _own(self, info: WorkerInfo) -> Peer:
        return Peer(model=info.model, incarnation=self.incarnation, place=info.topology)

    async def _register(self, presence: Presence, info: WorkerInfo) -> None:
        config, core = self.config, self.core
        caretaker = Caretaker(
            core.worker,
            settings=CareSettings(stall_s=config.stall_s, stall_exit_s=config.stall_exit_s),
            on_ready=presence.tell_readiness,
            on_look=presence.renew_card,
            give_up=self._give_up,
        )
        card = WorkerCard.of(info, address=self.address)
        await presence.appear(caretaker, card)
        self._care_task = asyncio.create_task(caretaker.run())

    # --- while it runs ----------------------------------------------------------------------

    def _refresh_metrics(self) -> None:
        if self._recorder is not None:
            counters = self.core.worker.table.counters
            self._recorder.refresh(
                self.present_load(),
                expired=counters.expired,
                tokens_refused=counters.tokens_refused,
            )

    def _drift_checked(self, check: DriftCheck) -> None:
        low = self._drift_alarm.judge(check)
        if self._recorder is not None:
            self._recorder.drift_checked(check, low=low)

    def _note(self) -> str:
        notes = [self._drift_alarm.note, self.core.slow_rows.note]
        if self._local is not None:
            notes.append(self._local.note)
        return "; ".join(filter(None, notes))

    def _give_up(self, _why: str) -> None:
        self.exit_code = ExitCode.FAILURE
        self.finished.set()

    async def _drain(self, cap_s: float) -> None:
        until = time.monotonic() + cap_s
        if self._local is not None:
            # What it has begun to read still needs room here.
            await self.rpc.health.set_ready(False)
            await self._local.drain(cap_s)
        await drain(self.core.worker.table, cap_s=max(0.0, until - time.monotonic()))
        self.finished.set()

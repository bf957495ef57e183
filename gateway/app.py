"""Wiring of the gateway: settings in, running servers out."""

import asyncio
import json
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.attempt import Services
from gateway.background import Background, end_tasks
from gateway.balancing.registry import balancers
from gateway.breaker import BreakerSettings
from gateway.clients.control import ControlClient
from gateway.clients.decode import DecodeClient
from gateway.clients.prefill import PrefillClient
from gateway.config import GatewayConfig
from gateway.debug.request_log import RequestLog
from gateway.debug.routes import debug_routes
from gateway.entrance import Entrance
from gateway.intake import Intake, IntakeLimits, Naming
from gateway.lane import open_lane
from gateway.live_traffic import LiveTraffic
from gateway.local_prefill import Router
from gateway.observability import Observability
from gateway.observer import RequestObserver
from gateway.observers import Observers
from gateway.page.assets import load_assets
from gateway.pipeline import Pipeline
from gateway.planner import AnswerPlanner
from gateway.prober import Prober
from gateway.quotas.base import Limits, QuotaStore
from gateway.quotas.local import LocalQuotas
from gateway.quotas.quotas import Quotas
from gateway.quotas.shared import SharedQuotas, SharedSettings
from gateway.retry_policy import RetryPolicy
from gateway.routes.admin import AdminRoutes
from gateway.routes.body_room import BodyRoom
from gateway.routes.document import DocumentRoute
from gateway.routes.generate import GenerateRoutes
from gateway.routes.models import ModelRoutes
from gateway.routes.operations import OperationRoutes
from gateway.routes.page import PageRoutes
from gateway.routes.properties import PropertyRoutes
from gateway.routes.table import Endpoints, rest_app, working_paths
from gateway.routes.tokens import TokenRoutes
from gateway.routes.tracing import TracedRequests
from gateway.rpc.inference import SERVICE_NAME, InferenceServicer
from gateway.security import Security
from gateway.structured.enforcer import Enforcer
from gateway.workers import DECODE, PREFILL, ChoicePolicy, Workers
from shared.discovery.base import Discovery
from shared.discovery.redis import RedisDiscovery, RedisSettings
from shared.discovery.static import StaticDiscovery, StaticSettings
from shared.grammar.compiler import GrammarCompiler
from shared.rpc.channel_pool import ChannelPool
from shared.rpc.server import RpcServer, build_server
from shared.telemetry.admin import Readiness, admin_server
from shared.telemetry.http_server import HttpServer
from shared.telemetry.spans import SpanSource
from shared.tokenizer.folder import find_model_folder
from shared.tokenizer.tokenizer import Tokenizer

_HEALTH_PERIOD_S = 0.5
_BACKGROUND_S = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Servers:
    rest: HttpServer
    grpc: RpcServer
    admin: HttpServer


class Gateway:
    """The whole role in one event loop.

    Args:
        config: its settings.
        spans: where traces go; None: as the settings say.
    """

    def __init__(self, config: GatewayConfig, *, spans: SpanSource | None = None) -> None:
        self._config = config
        self.worker_id = config.worker_id or f"gateway-{uuid.uuid4().hex[:8]}"
        self._security = Security.from_config(config)
        self._channels = ChannelPool(tls=self._security.peer)
        self._background = Background()
        self._discovery = self._make_discovery()
        self.workers = Workers(
            self._discovery,
            policy=ChoicePolicy(
                name=config.balancer,
                make_balancer=balancers().get(config.balancer),
                link_band_tokens=config.link_band_tokens,
            ),
            breaker=BreakerSettings(
                failures=config.breaker_failures, cooldown_s=config.breaker_cooldown_s
            ),
        )
        self._watched = Observability.from_config(config, worker_id=self.worker_id, spans=spans)
        self._metrics = self._watched.metrics
        self._router = Router(
            self.workers,
            short_tokens=config.short_prompt_tokens,
            on_local=lambda why: self._metrics.local_prefills.labels(reason=why).inc(),
        )
        self._retries = RetryPolicy.from_config(config, metrics=self._metrics)
        self._quotas = self._make_quotas()
        self._entrance = Entrance(
            open_lane(config, workers=self.workers.taking_prompts),
            local=open_lane(config, workers=self.workers.readers),
            router=self._router,
            quotas=self._quotas,
        )
        self._traffic = LiveTraffic()
        self._admin_routes: AdminRoutes | None = None
        self._pipeline: Pipeline | None = None
        self._bodies = BodyRoom(limit_bytes=config.max_bodies_bytes)
        self._servers: _Servers | None = None
        self._grammars: GrammarCompiler | None = None
        self._health_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Loads the tokenizer, looks for workers and opens all ports; workers may come later.

        Raises:
            ModelLoadError: no tokenizer.
            ConfigError: a port is busy, or Redis' address is malformed.
        """
        tokenizer = await asyncio.to_thread(Tokenizer.from_folder, self._model_folder())
        if tokenizer.chat_template is None:
            _log.warning("the model has no chat template: /v1/chat/completions will answer 400")
        await self._discovery.start()
        await self._quotas.start()
        observer = Observers(*self._watched.observers(), self._traffic)
        log = self._watched.request_log(tokenizer)
        intake = self._make_intake(tokenizer)
        self._pipeline = Pipeline(
            Services(
                prefill=PrefillClient(self._channels),
                decode=DecodeClient(self._channels),
                workers=self.workers,
                router=self._router,
                background=self._background,
                prober=Prober(self.workers),
            ),
            entrance=self._entrance,
            tokenizer=tokenizer,
            observer=observer,
            log=log,
            retries=self._retries,
        )
        self._servers = await self._open(intake, self._pipeline, observer, log)
        self._watched.serves(intake.model_id())
        self._health_task = asyncio.create_task(self._keep_health(self._servers.grpc))
        _log.info("gateway ready", **self._addresses(), missing=self.workers.missing() or "")

    def ready_line(self) -> str:
        """The one line that supervisors read from standard output."""
        fields = {"role": "gateway", "worker_id": self.worker_id, **self._addresses()}
        return f"TANDEM_READY {json.dumps(fields)}"

    @property
    def rest_address(self) -> str:
        """host:port of the REST server; valid after `start`."""
        return self._addresses()["rest"]

    @property
    def grpc_address(self) -> str:
        """host:port of the gRPC server; valid after `start`."""
        return self._addresses()["grpc"]

    @property
    def admin_address(self) -> str:
        """host:port of the admin server; valid after `start`."""
        return self._addresses()["admin"]

    async def drain(self) -> None:
        """Refuses new requests and waits for running ones, up to `drain_timeout_s`."""
        self._entrance.drain()
        if self._pipeline is None:
            return
        if not await self._pipeline.running.wait_idle(self._config.drain_timeout_s):
            _log.warning("requests cut off by the end of the drain", count=self._in_flight())

    async def close(self) -> None:
        """Closes ports, cancels what still runs, tells the workers; twice is fine."""
        async with AsyncExitStack() as last:  # all of it, in reverse, whatever one step raises
            last.push_async_callback(self._watched.close)
            last.push_async_callback(self._channels.close)
            if self._grammars is not None:
                last.callback(self._grammars.close)
            last.push_async_callback(self._discovery.close)
            last.push_async_callback(self._quotas.close)
            last.push_async_callback(self._background.close, timeout_s=_BACKGROUND_S)
            if self._health_task is not None:
                await end_tasks(self._health_task)
            if self._admin_routes is not None:
                self._admin_routes.close()
            if self._servers is not None:
                servers = self._servers
                await asyncio.gather(servers.rest.stop(), servers.grpc.stop(), servers.admin.stop())

    def readiness(self) -> Readiness:
        """Whether a request could be served now."""
        if self._entrance.draining:
            return Readiness(ready=False, phase="draining", detail="shutting down")
        missing = self.workers.missing()
        if missing is not None:
            return Readiness(ready=False, phase="waiting", progress=0.0, detail=missing)
        return Readiness(ready=True)

    def _in_flight(self) -> int:
        return self._pipeline.running.count if self._pipeline is not None else 0

    def _make_discovery(self) -> Discovery:
        config = self._config
        if config.redis_url:
            return RedisDiscovery(
                RedisSettings(url=config.redis_url),
                roles=(PREFILL, DECODE),
                guard=self._security.guard,
            )
        return StaticDiscovery(
            {PREFILL: config.prefill_workers, DECODE: config.decode_workers},
            fetch=self._security.guarded(ControlClient(self._channels).fetch_card),
            settings=StaticSettings(refresh_s=config.poll_interval_s),
        )

    def _make_quotas(self) -> Quotas:
        config = self._config
        store: QuotaStore = LocalQuotas()
        if config.redis_url:
            settings = SharedSettings(url=config.redis_url)
            store = SharedQuotas(settings, on_fallback=self._metrics.quota_fallbacks.inc)
        defaults = Limits(
            requests=config.key_requests_per_minute or None,
            tokens=config.key_tokens_per_minute or None,
        )
        return Quotas(store, defaults=defaults)

    def _model_folder(self) -> Path:
        config = self._config
        return find_model_folder(config.model_dir or config.model, config.cache_dir)

    def _make_intake(self, tokenizer: Tokenizer) -> Intake:
        config = self._config
        self._grammars = self._watched.grammar_compiler(tokenizer)
        return Intake(
            tokenizer,
            workers=self.workers,
            naming=Naming(name=config.model_name, alias=Path(config.model).name),
            limits=IntakeLimits(timeout_s=config.request_timeout_s, max_choices=config.max_choices),
            planner=AnswerPlanner(
                Enforcer(self._grammars),
                tokenizer=tokenizer,
                tool_parser=config.tool_parser,
            ),
        )

    def _endpoints(
        self, intake: Intake, pipeline: Pipeline, observer: RequestObserver
    ) -> Endpoints:
        config = self._config
        return Endpoints(
            generate=GenerateRoutes(intake, pipeline=pipeline, config=config, observer=observer),
            models=ModelRoutes(intake),
            operations=OperationRoutes(
                readiness=self.readiness,
                details=self._details,
                registry=self._watched.registry,
                refresh=self._refresh,
            ),
            tokens=TokenRoutes(
                intake,
                max_body_bytes=config.max_body_bytes,
                strict_params=config.strict_params,
            ),
            properties=PropertyRoutes(intake, config=config, load=self._load),
            document=DocumentRoute(),
            admin=self._make_admin(),
            page=PageRoutes(load_assets()) if config.page else None,
        )

    async def _open(
        self, intake: Intake, pipeline: Pipeline, observer: RequestObserver, log: RequestLog
    ) -> _Servers:
        config = self._config
        grpc_server = build_server(
            host=config.host,
            port=config.grpc_port,
            service_names=(SERVICE_NAME,),
            with_reflection=config.reflection,
            certificates=self._security.public,
            interceptors=self._security.interceptors(on_refused=observer.rejected),
            spans=self._watched.spans,
        )
        InferenceServicer(intake, pipeline=pipeline, observer=observer).add_to(grpc_server.server)
        app = rest_app(self._endpoints(intake, pipeline, observer))
        guarded = self._security.around(self._bodies.around(app), on_refused=observer.rejected)
        rest = HttpServer(
            TracedRequests(guarded, spans=self._watched.spans, paths=working_paths(app)),
            host=config.host,
            port=config.port,
            grace_s=1.0,
            certificates=self._security.public,
        )
        admin = admin_server(
            host=config.admin_host,
            port=config.admin_port,
            registry=self._watched.registry,
            readiness=self.readiness,
            alive=lambda: True,
            refresh=self._refresh,
            more=debug_routes(log),
        )
        servers = _Servers(rest=rest, grpc=grpc_server, admin=admin)
        self._servers = servers
        await admin.start()
        await grpc_server.start()
        await grpc_server.health.set_ready(self.readiness().ready)
        await rest.start()
        return servers

    def _make_admin(self) -> AdminRoutes:
        self._admin_routes = AdminRoutes(
            workers=self.workers,
            control=ControlClient(self._channels),
            live=self._live,
            host=self._config.host,
            keepalive_s=self._config.keepalive_s,
        )
        return self._admin_routes

    def _load(self) -> dict[str, Any]:
        return {
            "server_load": self._in_flight(),
            "queued_requests": self._entrance.queued_requests,
            "queued_prompt_tokens": self._entrance.queued_tokens,
            "queue_limit_tokens": self._config.queue_tokens,
            "draining": self._entrance.draining,
        }

    def _live(self) -> dict[str, Any]:
        readiness = self.readiness()
        return {
            "ready": readiness.ready,
            "phase": readiness.phase,
            "detail": readiness.detail,
            "requests_in_flight": self._in_flight(),
            "queue": {
                "requests": self._entrance.queued_requests,
                "tokens": self._entrance.queued_tokens,
                "limit_tokens": self._config.queue_tokens,
            },
            **self._details(),
            "traffic": self._traffic.snapshot(),
            "flows": self._traffic.flows(),
        }

    async def _keep_health(self, server: RpcServer) -> None:
        while True:
            # Workers that came may take what waits; without any, nobody waits in vain.
            self._entrance.poke()
            await server.health.set_ready(self.readiness().ready)
            await asyncio.sleep(_HEALTH_PERIOD_S)

    def _refresh(self) -> None:
        self._metrics.requests_in_flight.set(self._in_flight())
        self._metrics.queue_depth.set(self._entrance.queued_requests)
        self._metrics.queued_prompt_tokens.set(self._entrance.queued_tokens)
        for role in (PREFILL, DECODE):
            self._metrics.ready_workers.labels(role=role).set(self.workers.ready(role))

    def _details(self) -> dict[str, Any]:
        return {
            "discovery": "redis" if self._config.redis_url else "static",
            "registry": "degraded" if self.workers.degraded else "ok",
            "quotas": self._quotas.state,
            "local_prefill": self._router.describe(),
            "replays": self._retries.replays.describe(),
            "workers": self.workers.describe(),
        }

    def _addresses(self) -> dict[str, str]:
        assert self._servers is not None, "addresses are known after start()"
        return {
            "rest": self._servers.rest.address,
            "grpc": self._servers.grpc.address,
            "admin": self._servers.admin.address,
        }

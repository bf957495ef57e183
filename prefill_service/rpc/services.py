"""Adds this role's services to a server."""

import grpc.aio

from prefill_service.engine.engine import PrefillEngine
from prefill_service.rpc import control, servicer
from prefill_service.rpc.control import ControlServicer, StartDrain
from prefill_service.rpc.requests import ModelLimits
from prefill_service.rpc.servicer import PrefillServicer
from protos.tandem.v1 import control_pb2_grpc, prefill_pb2_grpc
from shared.grammar.compiler import GrammarCompiler
from shared.types.worker_info import WorkerInfo

PREFILL_NAME = servicer.SERVICE_NAME
"""Full name of PrefillService."""

SERVICE_NAMES = (PREFILL_NAME, control.SERVICE_NAME)
"""Full names, for health and reflection."""


def add_services(
    server: grpc.aio.Server,
    *,
    engine: PrefillEngine,
    limits: ModelLimits,
    grammars: GrammarCompiler,
    info: WorkerInfo,
    start_drain: StartDrain,
) -> None:
    """Adds PrefillService and ControlService to a server that has not started.

    Args:
        server: the server.
        engine: does the work.
        limits: what requests must fit.
        grammars: compiles what answers must conform to.
        info: the worker.
        start_drain: begins a drain and returns at once.
    """
    add_prefill_service(server, engine=engine, limits=limits, grammars=grammars)
    control_pb2_grpc.add_ControlServiceServicer_to_server(
        ControlServicer(engine, info=info, start_drain=start_drain), server
    )


def add_prefill_service(
    server: grpc.aio.Server,
    *,
    engine: PrefillEngine,
    limits: ModelLimits,
    grammars: GrammarCompiler,
) -> None:
    """Adds PrefillService alone: the server has a ControlService that speaks for it.

    Args:
        server: the server, not started yet.
        engine: does the work.
        limits: what requests must fit.
        grammars: compiles what answers must conform to.
    """
    prefill_pb2_grpc.add_PrefillServiceServicer_to_server(
        PrefillServicer(engine, limits=limits, grammars=grammars), server
    )

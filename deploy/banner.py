"""What a started cluster says about itself: addresses, model, capacity, backends."""

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from deploy.cluster import Endpoints
from deploy.ready import ReadyLine
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.kv.geometry import PAGE_SIZE
from shared.rpc.channel import open_channel

_ASK_S = 10.0
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFacts:
    """What a worker says about itself."""

    line: ReadyLine
    """Its ready line."""
    info: control_pb2.GetInfoResponse
    """Identity."""
    load: control_pb2.GetLoadResponse
    """Load and capacity."""


async def ask_worker(line: ReadyLine) -> WorkerFacts:
    """Asks a worker's ControlService for identity and capacity."""
    async with open_channel(line.address) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        info = await stub.GetInfo(control_pb2.GetInfoRequest(), timeout=_ASK_S)
        load = await stub.GetLoad(control_pb2.GetLoadRequest(), timeout=_ASK_S)
    return WorkerFacts(line=line, info=info, load=load)


async def print_banner(endpoints: Endpoints) -> None:
    """Prints addresses, model, KV capacity and backends of the cluster."""
    workers = [await ask_worker(line) for line in (*endpoints.prefill, *endpoints.decode)]
    console = Console(soft_wrap=True)
    console.print(_addresses(endpoints, workers))
    console.print(_workers(workers))
    console.print(
        f"try:  curl {endpoints.url}/v1/models\n"
        f'      tandem chat --url {endpoints.url} "Why is the sky blue?"',
        highlight=False,
    )


def _addresses(endpoints: Endpoints, workers: list[WorkerFacts]) -> Table:
    info = workers[0].info
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("REST", endpoints.url + "/v1")
    table.add_row(
        "gRPC", f"{endpoints.gateway.grpc}  (tandem.v1.InferenceService, with reflection)"
    )
    table.add_row("metrics", f"http://{endpoints.gateway.admin}/metrics")
    table.add_row("model", f"{info.model.name}, {info.model.dtype}")
    table.add_row("context", f"{info.max_model_len} tokens")
    return table


def _workers(workers: list[WorkerFacts]) -> Table:
    table = Table("worker", "address", "device", "attention", "transports", "KV pages", "slab MiB")
    for facts in workers:
        info, load = facts.info, facts.load
        table.add_row(
            info.worker_id,
            facts.line.address,
            info.device,
            info.attention_backend,
            ", ".join(info.transports),
            f"{load.total_pages} of {PAGE_SIZE} tokens" if load.total_pages else "-",
            f"{load.total_slab_bytes / _MIB:.0f}" if load.total_slab_bytes else "-",
        )
        for rejected in info.rejected_backends:
            table.add_row("", f"[dim]not used: {rejected}[/dim]")
    return table

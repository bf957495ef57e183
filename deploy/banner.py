"""What a started cluster says about itself: addresses, model, capacity, backends."""

from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from rich.console import Console

from deploy.cluster import Endpoints
from deploy.config import UpConfig
from deploy.ready import ReadyLine
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.kv.geometry import PAGE_SIZE
from shared.model.config import ModelConfig
from shared.model.profile import load_profile
from shared.rpc.channel import open_channel
from shared.tokenizer.folder import find_model_folder
from shared.types.methods import SparsityParams
from shared.types.page_policies import PagePolicyName
from shared.types.page_summary import summary_of

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


async def print_banner(endpoints: Endpoints, *, config: UpConfig) -> None:
    """Prints addresses, model, both methods' parameters, KV capacity and backends."""
    workers = [await ask_worker(line) for line in (*endpoints.prefill, *endpoints.decode)]
    info = workers[0].info
    console = Console(highlight=False, markup=False)
    for name, text in (
        ("REST", f"{endpoints.url}/v1"),
        ("page", await page_text(endpoints.url)),
        ("gRPC", f"{endpoints.gateway.grpc} (tandem.v1.InferenceService, reflection)"),
        ("metrics", f"http://{endpoints.gateway.admin}/metrics"),
        ("model", f"{info.model.name}, {info.model.dtype}, {info.max_model_len} positions"),
        ("profile", info.profile),
        *_methods(config, model_hash=info.model.model_hash),
        *((facts.line.role, _worker_text(facts)) for facts in workers),
        *(("not used", text) for text in rejection_texts([facts.info for facts in workers])),
        *(
            ("FAULTS", f"{facts.line.worker_id} breaks its transfers on purpose: {faults}")
            for facts in workers
            if (faults := facts.info.faults)
        ),
        ("try", f"curl {endpoints.url}/v1/models"),
        ("", f'tandem chat --url {endpoints.url} "Why is the sky blue?"'),
    ):
        console.print(f"{name:<8}  {text}", soft_wrap=True)


def rejection_texts(infos: Sequence[control_pb2.GetInfoResponse]) -> list[str]:
    """What was wanted and does not work: backends of the first worker, transports of any."""
    transports = (text for info in infos for text in info.rejected_transports)
    return list(dict.fromkeys((*infos[0].rejected_backends, *transports)))


async def page_text(url: str) -> str:
    """Where the gateway's page is, or that it has none."""
    async with httpx.AsyncClient(trust_env=False, timeout=_ASK_S) as client:
        answer = await client.head(f"{url}/")
    served = answer.status_code == httpx.codes.OK
    return f"{url}/" if served else "turned off (gateway setting page)"


def _methods(config: UpConfig, *, model_hash: str) -> list[tuple[str, str]]:
    """What the model's profile says; a role with another `profile` logs what it uses."""
    folder = find_model_folder(config.model, config.cache_dir)
    profile = load_profile(
        config=ModelConfig.from_folder(folder), model_hash=model_hash, cache_dir=config.cache_dir
    )
    pruning, sparsity = profile.pruning, profile.sparsity
    return [
        (
            "CLAA",
            f"keep {pruning.keep_rate:g}, at least {pruning.min_keep}, layer "
            f"{pruning.pruning_layer}, not below {pruning.bypass_below} prompt tokens",
        ),
        _page_selection(sparsity),
    ]


def _page_selection(sparsity: SparsityParams) -> tuple[str, str]:
    if sparsity.policy != PagePolicyName.DELTA:
        return "pages", f"{summary_of(sparsity).text}, of {PAGE_SIZE} tokens"
    layers = ", ".join(map(str, sparsity.full_layers))
    return "DELTA", f"{sparsity.page_budget} pages of {PAGE_SIZE} tokens, full layers {layers}"


def _worker_text(facts: WorkerFacts) -> str:
    info = facts.info
    parts = [
        f"{facts.line.address}  {info.worker_id}",
        f"{info.device}, attention {info.attention_backend}",
        f"transports {', '.join(info.transports)}",
    ]
    if facts.load.kv_tokens:
        parts += capacity_texts(facts.load, context=info.max_model_len)
    if longest := facts.load.local_prefill_tokens:
        parts.append(f"reads prompts of up to {longest:,} tokens itself")
    return "; ".join(parts)


def capacity_texts(load: control_pb2.GetLoadResponse, *, context: int) -> list[str]:
    """What a decode worker's memory holds: tokens, requests at full context, rows, slab."""
    fitting = load.kv_tokens / max(1, context)
    return [
        f"KV cache {load.kv_tokens:,} tokens in {load.total_pages:,} pages of two length groups",
        f"{fitting:.1f} unpruned requests of {context:,} tokens at once",
        f"{load.max_batch} sequences a step",
        f"slab {load.total_slab_bytes / _MIB:.0f} MiB",
    ]

"""The parts of a prefill engine, joined once the model is in memory; names concrete classes."""

from dataclasses import replace
from typing import Protocol

import torch
from prometheus_client import CollectorRegistry

from prefill_service.config import PrefillConfig
from prefill_service.engine.batcher import PackLimits
from prefill_service.engine.compute import ComputeThread
from prefill_service.engine.courier import DeliveryPolicy
from prefill_service.engine.device_slab import DeviceSlabs
from prefill_service.engine.engine import PrefillEngine
from prefill_service.engine.held import HeldStore
from prefill_service.engine.host_slab import HostSlabs
from prefill_service.engine.queue import SpeedMeter, TokenQueue
from prefill_service.engine.recorder import MetricsRecorder
from prefill_service.engine.runner import PrefillRunner
from prefill_service.engine.sender import Links
from prefill_service.engine.services import Services, profile_planner
from prefill_service.engine.warm_up import warm_up, warm_up_tokens
from prefill_service.rpc.control import CAPABILITIES
from prefill_service.rpc.decode_client import DecodeClient, SameProcessClient
from prefill_service.rpc.lanes import open_lanes
from prefill_service.rpc.requests import ModelLimits
from shared.config.version import package_version
from shared.discovery.address_guard import AddressGuard
from shared.errors import ConfigError
from shared.grammar.compiler import GrammarCompiler
from shared.kv.geometry import KvGeometry
from shared.kv.memory import HostMemory
from shared.kv.room import allocating, check_room
from shared.kv.slab_layout import aligned
from shared.kv_memory.tensor_memory import TensorMemory
from shared.model.probe import AttentionChoice
from shared.model.weights import LoadedModel
from shared.rpc.tls import PeerTls
from shared.telemetry.certificates import Certificates
from shared.tokenizer.tokenizer import Tokenizer
from shared.transport.base import LocalEndpoint
from shared.transport.hello import Peer
from shared.transport.memory_choice import MemoryChoice, choose_memory
from shared.transport.topology import read_topology
from shared.types.memory_kind import MemoryKind
from shared.types.topology import Topology
from shared.types.worker_info import WorkerInfo


class Owner(Protocol):
    """Whoever runs the engine."""

    @property
    def config(self) -> PrefillConfig:
        """Settings."""
        ...

    @property
    def worker_id(self) -> str:
        """Name of the worker."""
        ...

    @property
    def incarnation(self) -> str:
        """Fresh for every engine."""
        ...

    @property
    def registry(self) -> CollectorRegistry:
        """Takes the metrics."""
        ...

    @property
    def recorder(self) -> MetricsRecorder:
        """Feeds them."""
        ...

    @property
    def certificates(self) -> Certificates | None:
        """What decode workers are shown; None: plain text."""
        ...


class Parts:
    """What is built once the model is in memory.

    Args:
        loaded: the model.
        attention: which its prompts take.
        owner: whose parts they are.
        endpoint: where the KV of every prompt goes without a wire, for the transport `loopback`;
            None where the decode workers are other processes.

    Raises:
        ConfigError: a setting is wrong, or a transport that it requires does not work here.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        attention: AttentionChoice,
        owner: Owner,
        endpoint: LocalEndpoint | None = None,
    ) -> None:
        config, model = owner.config, loaded.model
        self.model = model.identity(config.model_name or loaded.name)
        self.limits = ModelLimits(
            vocab_size=model.config.vocab_size,
            max_model_len=_max_model_len(config, loaded),
            num_layers=model.config.num_layers,
            sparsity=loaded.profile.sparsity,
        )
        self.grammars = GrammarCompiler(
            Tokenizer.from_folder(loaded.folder),
            on_compiled=owner.recorder.grammar_compiled,
        )
        on_cuda = model.device.type == "cuda"
        chunk_tokens = config.device_chunk_tokens if on_cuda else config.chunk_tokens
        self.runner = PrefillRunner(model, attention=attention.backend, chunk_tokens=chunk_tokens)
        self.compute = ComputeThread(self.runner)
        self.planner = profile_planner(
            model.config, geometry=model.geometry(), params=loaded.profile.pruning
        )
        tls = PeerTls.of(owner.certificates, name=config.tls_name)
        self.client = (DecodeClient if endpoint is None else SameProcessClient)(
            model=self.model,
            timeout_s=config.rpc_timeout_s,
            tls=tls,
            guard=AddressGuard(config.worker_networks),
        )
        held = HeldStore(
            buffer_bytes=config.buffer_bytes,
            sealed_bytes=config.sealed_bytes,
            lease_s=config.sealed_lease_s,
        )
        self.memory = _memory(config, local=endpoint is not None)
        owner.recorder.memory_chosen(self.memory)
        buffer = _buffer(config, self.memory)
        self.slabs = self._slabs(buffer, geometry=model.geometry(), held=held)
        place = replace(read_topology(config.device), kv_memory=self.memory.kind.value)
        self.lanes = open_lanes(
            config,
            Peer(model=self.model, incarnation=owner.incarnation, place=place),
            tls=tls,
            registry=owner.registry,
            endpoint=endpoint,
            room=self.slabs,
        )
        self.engine = PrefillEngine(self._services(config, held=held, owner=owner))
        self.info = self._info(loaded, attention=attention, owner=owner, place=place)

    def _info(
        self, loaded: LoadedModel, *, attention: AttentionChoice, owner: Owner, place: Topology
    ) -> WorkerInfo:
        config = owner.config
        return WorkerInfo(
            role="prefill",
            capabilities=CAPABILITIES,
            worker_id=owner.worker_id,
            incarnation=owner.incarnation,
            model=self.model,
            max_model_len=self.limits.max_model_len,
            version=package_version(),
            device=config.device,
            attention_backend=attention.backend.name,
            rejected_backends=tuple(f"{r.name}: {r.reason}" for r in attention.rejected),
            transports=self.lanes.chosen.names,
            rejected_transports=tuple(each.text for each in self.lanes.chosen.rejected),
            faults=config.faults_text,
            profile=loaded.profile.label,
            methods_hash=loaded.profile.methods_hash,
            topology=place,
        )

    def _slabs(
        self, buffer: TensorMemory | HostMemory, *, geometry: KvGeometry, held: HeldStore
    ) -> HostSlabs | DeviceSlabs:
        executor, make_room = self.compute.checksums, held.make_room
        slabs: HostSlabs | DeviceSlabs
        if isinstance(buffer, HostMemory):
            slabs = HostSlabs(buffer, geometry=geometry, executor=executor, make_room=make_room)
        else:
            slabs = DeviceSlabs(buffer, geometry=geometry, executor=executor, make_room=make_room)
        held.on_droppable = slabs.look_again
        return slabs

    def _services(self, config: PrefillConfig, *, held: HeldStore, owner: Owner) -> Services:
        speed, on_cuda = SpeedMeter(), self.runner.device.type == "cuda"
        return Services(
            compute=self.compute,
            planner=self.planner,
            model=self.model,
            slabs=self.slabs,
            links=Links(peer=self.client, pairs=self.lanes.pairs),
            policy=DeliveryPolicy(
                tries=config.delivery_tries, reserve_wait_s=config.reserve_wait_s
            ),
            queue=TokenQueue(config.queue_tokens, speed=speed),
            pack=PackLimits(
                tokens=config.device_pack_tokens if on_cuda else config.pack_tokens,
                prompts=config.pack_prompts,
            ),
            held=held,
            speed=speed,
            recorder=owner.recorder,
        )

    def warm_up(self) -> None:
        """Runs a first prompt, so that no caller pays for first-time work; blocks."""
        tokens = min(warm_up_tokens(self.info.device), self.limits.max_model_len - 1)
        warm_up(self.runner, planner=self.planner, tokens=tokens)
        self.slabs.warm_up()

    async def close(self) -> None:
        """Ends the engine and drops every connection."""
        await self.engine.close()
        await self.client.close()
        await self.lanes.close()


def _memory(config: PrefillConfig, *, local: bool) -> MemoryChoice:
    """Where KV waits; within a decode worker it goes no further than that worker's slab."""
    if local:
        reason = "KV stays in this process"
        return MemoryChoice(kind=MemoryKind.HOST, reason=reason, device=config.device)
    required = config.require_transport
    return choose_memory(
        config.kv_memory,
        device=config.device,
        transports=(required,) if required else config.transports,
    )


def _buffer(config: PrefillConfig, memory: MemoryChoice) -> TensorMemory | HostMemory:
    on_host = memory.kind is MemoryKind.HOST
    place = "cpu" if on_host else config.device
    if torch.device(place).type == "cpu":
        check_room({"buffer_bytes": config.buffer_bytes})
    with allocating("buffer_bytes", nbytes=config.buffer_bytes, place=place):
        nbytes = aligned(config.buffer_bytes)
        return HostMemory(nbytes) if on_host else TensorMemory(nbytes, device=config.device)


def _max_model_len(config: PrefillConfig, loaded: LoadedModel) -> int:
    longest = loaded.model.config.max_position
    if config.max_model_len > longest:
        raise ConfigError(
            f"max_model_len {config.max_model_len} is beyond the model's {longest} positions; "
            "lower it, or leave it at 0 for the model's own",
            param="max_model_len",
        )
    return config.max_model_len or longest

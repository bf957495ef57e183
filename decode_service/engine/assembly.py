"""Joins the parts of a worker that hold memory and do work: settings and a model in, one out."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from decode_service.config import DecodeConfig
from decode_service.engine.adoption import Adoption, HostAdoption
from decode_service.engine.backends import DecodeBackend, make_runner, probe_decode
from decode_service.engine.banner import banner
from decode_service.engine.device_adoption import DeviceAdoption
from decode_service.engine.drift import DriftCheck, DriftWatch
from decode_service.engine.engine import DecodeEngine, StepRunner
from decode_service.engine.handoffs import ReservationLimits
from decode_service.engine.intake import Intake
from decode_service.engine.memory import WorkerMemory, allocate
from decode_service.engine.page_trace import TracingRunner
from decode_service.engine.recorder import MetricsRecorder
from decode_service.engine.reservations import ReservationTable
from decode_service.engine.rows_to_come import RowsToCome
from decode_service.engine.runner import ObservedRunner, ServingRunner
from decode_service.engine.scheduler import Scheduler
from decode_service.engine.slow_rows import SlowRows
from decode_service.engine.verify import ManifestVerifier
from decode_service.engine.worker import DecodeWorker, WorkerSettings
from decode_service.sparsity.registry import policy_for
from shared.grammar.compiler import GrammarCompiler
from shared.model.profile_record import ModelProfile
from shared.model.weights import LoadedModel
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.memory_kind import MemoryKind
from shared.types.model_identity import ModelIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The parts of a worker that hold memory and do work."""

    memory: WorkerMemory
    """Pages and slab."""
    runner: ServingRunner
    """Steps rows."""
    backend: DecodeBackend
    """How it computes them."""
    worker: DecodeWorker
    """Everything but the network."""
    grammars: GrammarCompiler
    """Compiles what answers must conform to."""
    slow_rows: SlowRows
    """Answers that the kernels leave out."""

    @property
    def identity(self) -> ModelIdentity:
        """The model as peers compare it."""
        return self.memory.capacity.identity

    @property
    def facts(self) -> dict[str, object]:
        """What the health page says of memory and computation."""
        return {**self.memory.facts, **self.runner.facts}

    def described(self, profile: ModelProfile, *, max_batch: int) -> dict[str, object]:
        """What a start-up line says of it."""
        facts = banner(
            capacity=self.memory.capacity,
            size=self.memory.size,
            sparsity=profile.sparsity,
            max_batch=max_batch,
        )
        slow = self.slow_rows.outlook(profile)
        return {**self.backend.log_facts(), **facts, "rows_by_torch": slow}

    def close(self) -> None:
        """Lets threads end, once no call can come any more."""
        self.grammars.close()
        self.worker.intake.close()


def build_core(
    config: DecodeConfig,
    loaded: LoadedModel,
    *,
    recorder: MetricsRecorder,
    on_drift: Callable[[DriftCheck], None],
) -> Core:
    """Allocates memory and joins the parts; inside the running loop. The engine is not started.

    Args:
        config: settings.
        loaded: the model.
        recorder: hears of steps and endings.
        on_drift: told of drift checks, on the event loop.

    Raises:
        ConfigError: sizes do not fit, the profile's page policy does not fit the model, or the
            attention backend that was asked for cannot run here.
    """
    # Made and dropped: what every request would be refused for is said before the worker serves.
    policy_for(loaded.profile.sparsity, num_layers=loaded.model.config.num_layers)
    memory = allocate(config, loaded)
    recorder.memory_chosen(memory.landing)
    rows_to_come = RowsToCome()
    backend, runner = _runner(config, loaded, memory, rows_to_come=rows_to_come)
    slow_rows = SlowRows(kernels=backend.batches, on_row=recorder.row_left_out)
    engine = DecodeEngine(
        _watched(runner, config, on_drift=on_drift),
        Scheduler(max_batch=config.max_batch),
        clock=time.monotonic,
        on_step=recorder.step_done,
    )
    table = _table(config, memory)
    tokenizer = Tokenizer.from_folder(loaded.folder)
    grammars = GrammarCompiler(tokenizer, on_compiled=recorder.grammar_compiled)
    worker = DecodeWorker(
        table=table,
        intake=_intake(config, loaded, memory, table=table, engine=engine, recorder=recorder),
        engine=engine,
        tokenizer=tokenizer,
        grammars=grammars,
        settings=_settings(config, loaded, memory),
        observer=recorder,
        on_start=slow_rows.begun,
        rows_to_come=rows_to_come,
        clock=time.monotonic,
    )
    return Core(
        memory=memory,
        runner=runner,
        backend=backend,
        worker=worker,
        grammars=grammars,
        slow_rows=slow_rows,
    )


def _settings(config: DecodeConfig, loaded: LoadedModel, memory: WorkerMemory) -> WorkerSettings:
    return WorkerSettings(
        capacity=memory.capacity,
        sparsity=loaded.profile.sparsity,
        vocab_size=loaded.model.config.vocab_size,
        commit_wait_s=config.commit_wait_s,
        stream_queue_tokens=config.stream_queue_tokens,
    )


def _runner(
    config: DecodeConfig, loaded: LoadedModel, memory: WorkerMemory, *, rows_to_come: RowsToCome
) -> tuple[DecodeBackend, ServingRunner]:
    """What computes steps, and how it was chosen."""
    max_tokens = memory.capacity.max_model_len
    backend = probe_decode(loaded.model, max_tokens=max_tokens, requested=config.attention)
    runner = make_runner(
        backend,
        loaded.model,
        memory.cache,
        max_batch=config.max_batch,
        max_tokens=max_tokens,
        products=config.products,
        rows_to_come=rows_to_come,
    )
    return backend, runner


def _watched(
    runner: ObservedRunner, config: DecodeConfig, *, on_drift: Callable[[DriftCheck], None]
) -> StepRunner:
    """The runner, with a drift watch around it when one is wanted, and traces around both."""
    if not config.drift_every:
        return TracingRunner(runner)
    loop = asyncio.get_running_loop()

    def tell(check: DriftCheck) -> None:
        loop.call_soon_threadsafe(on_drift, check)

    return TracingRunner(DriftWatch(runner, every=config.drift_every, on_check=tell))


def _intake(
    config: DecodeConfig,
    loaded: LoadedModel,
    memory: WorkerMemory,
    *,
    table: ReservationTable,
    engine: DecodeEngine,
    recorder: MetricsRecorder,
) -> Intake:
    vocab_size = loaded.model.config.vocab_size
    verifier = ManifestVerifier(
        memory.cache, identity=memory.capacity.identity, vocab_size=vocab_size
    )
    adoption: Adoption
    if memory.landing.kind is MemoryKind.HOST:
        adoption = HostAdoption(memory.cache, engine=engine, verifier=verifier)
    else:
        adoption = DeviceAdoption(memory.cache, verifier=verifier, on_behind=recorder.commit_behind)
    return Intake(
        table,
        slab=memory.slab,
        cache=memory.cache,
        engine=engine,
        verifier=verifier,
        adoption=adoption,
        clock=time.monotonic,
        commit_wait_s=config.commit_wait_s,
    )


def _table(config: DecodeConfig, memory: WorkerMemory) -> ReservationTable:
    limits = ReservationLimits(
        lease_s=config.lease_s,
        adopt_lease_s=config.adopt_lease_s,
        quarantine_s=config.quarantine_s,
        remember_s=config.remember_s,
    )
    return ReservationTable(
        memory.slab,
        memory.cache,
        capacity=memory.capacity,
        limits=limits,
        clock=time.monotonic,
    )

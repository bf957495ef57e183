"""One run of the benchmark: processes, parity, both parts, limits."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loadtest.gateway_cost import arrivals, throughput
from loadtest.gateway_cost.client import (
    Answer,
    Exchange,
    chat_request,
    connect,
    read_answer,
)
from loadtest.gateway_cost.limits import limits
from loadtest.gateway_cost.long_prompts import LongPrompts, folder_without_bound, long_summary
from loadtest.gateway_cost.processes import Running, cpu_seconds, running
from loadtest.gateway_cost.script import Script
from loadtest.gateway_cost.settings import CostSettings
from loadtest.gateway_cost.workers import Pace
from loadtest.machine import machine_facts
from loadtest.spread import paired_ratios
from shared.errors import InternalError
from shared.tokenizer.tokenizer import Tokenizer

GATEWAY, RELAY = "gateway", "relay"
ARMS = (GATEWAY, RELAY)

MODEL = "simulated"
"""What the workers call their model."""

_WARM_REQUESTS = 24
_MODULE = (sys.executable, "-P", "-m")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Running processes; both arms talk to the same workers."""

    workers: Running
    """Simulated prefill and decode."""
    gateway: Running
    """The gateway."""
    relay: Running
    """What it is compared with."""

    def address(self, arm: str) -> str:
        """host:port of an arm's HTTP server."""
        return (self.gateway if arm == GATEWAY else self.relay).ready["rest"]

    def cpu_s(self, arm: str) -> dict[str, float]:
        """Processor time so far of everything that an arm's tokens pass through."""
        front = self.gateway if arm == GATEWAY else self.relay
        return {
            arm: front.cpu_seconds(),
            "workers": self.workers.cpu_seconds(),
            "client": cpu_seconds(),
        }


class GatewayCost:
    """Measures.

    Args:
        settings: sizes.
        progress: told what is done.
    """

    def __init__(self, settings: CostSettings, *, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._tokenizer = Tokenizer.from_folder(settings.model_dir)
        self._script = Script(self._tokenizer)
        self._compared = 0

    async def run(self, *, command: str) -> dict[str, Any]:
        """All of it, JSON-ready.

        Raises:
            TandemError: a process did not start, a stream broke, or a text was not the workers'.
        """
        began = machine_facts(command=command)
        with TemporaryDirectory(prefix="tandem-bench-") as folder:
            logs = Path(folder)
            first_tokens = await self._first_tokens(logs)
            long_prompts = await self._long_prompts(logs)
            flows = {
                str(size): await self._flows(logs, size)
                for size in self._settings.tokens_per_message
                if self._settings.streams
            }
        return {
            "first_token": first_tokens,
            "long_prompts": long_prompts,
            "throughput": flows,
            "limits": limits(first_tokens, flows, long_prompts),
            "parity": {"answers_compared": self._compared},
            "sizes": self._sizes(),
            **began,
        }

    async def _first_tokens(self, logs: Path) -> dict[str, Any]:
        settings = self._settings
        load = arrivals.ArrivingLoad(settings, model=MODEL, prompt=self._prompt())
        runs: dict[str, list[arrivals.FirstTokens]] = {arm: [] for arm in ARMS}
        cpu: dict[str, list[float]] = {arm: [] for arm in ARMS}
        pace = Pace(prefill_s=settings.prefill_s, token_s=settings.token_s)
        async with self._stage(pace, logs) as stage:
            for repeat in range(settings.repeats):
                for arm in ARMS:
                    before = stage.cpu_s(arm)[arm]
                    seed = settings.seed + repeat  # both arms get the same arrivals
                    samples = await load.run(stage.address(arm), seed=seed)
                    cpu[arm].append(stage.cpu_s(arm)[arm] - before)
                    runs[arm].append(self._times(samples))
                    added = arrivals.summary(runs[arm][-1:])["added_ttft_ms"]
                    self._progress(f"first token, {arm}, run {repeat + 1}: {added}")
        return {arm: arrivals.summary(runs[arm]) | {"cpu_s": cpu[arm]} for arm in ARMS}

    async def _long_prompts(self, logs: Path) -> dict[str, dict[str, Any]]:
        settings = self._settings
        if not settings.long_prompts:
            return {}
        folder = folder_without_bound(settings.model_dir, logs / "unbounded")
        asking = LongPrompts(settings, vocab_size=self._tokenizer.vocab_size)
        pace = Pace(prefill_s=settings.prefill_s)
        runs = []
        async with self._served(pace, logs, folder=folder) as (_, gateway):
            for repeat in range(settings.repeats):
                runs.append(await asking.run(gateway))
                found = long_summary(runs[-1:])
                self._progress(f"long prompts, run {repeat + 1}: {found}")
        return long_summary(runs)

    async def _flows(self, logs: Path, tokens_per_message: int) -> dict[str, Any]:
        settings = self._settings
        runs: dict[str, list[throughput.Flow]] = {arm: [] for arm in ARMS}
        async with self._stage(Pace(tokens_per_message=tokens_per_message), logs) as stage:
            for repeat in range(settings.repeats):
                for arm in ARMS:
                    flow = await self._flow(stage, arm)
                    runs[arm].append(flow)
                    self._progress(
                        f"throughput, {tokens_per_message} a message, {arm}, run {repeat + 1}: "
                        f"{flow.tokens_per_s:,.0f} tokens/s"
                    )
        rates = {arm: [run.tokens_per_s for run in runs[arm]] for arm in ARMS}
        cpu = {arm: [run.cpu_s[arm] / run.tokens for run in runs[arm]] for arm in ARMS}
        return {
            **{arm: throughput.summary(runs[arm]) for arm in ARMS},
            "tokens_per_s_of_relay": paired_ratios(rates[GATEWAY], rates[RELAY]),
            # The system counts processor time in ticks; a run may be too short for one.
            "cpu_s_of_relay": paired_ratios(cpu[GATEWAY], cpu[RELAY]) if all(cpu[RELAY]) else None,
        }

    async def _flow(self, stage: Stage, arm: str) -> throughput.Flow:
        before = stage.cpu_s(arm)
        streams = await throughput.all_at_once(stage.address(arm), self._settings, model=MODEL)
        after = stage.cpu_s(arm)
        answers = [self._checked(exchange, seed=seed) for seed, exchange in streams]
        return throughput.Flow(
            tokens=sum(answer.completion_tokens for answer in answers),
            frames=sum(answer.frames for answer in answers),
            seconds=throughput.seconds_of([exchange for _, exchange in streams]),
            cpu_s={name: after[name] - before[name] for name in before},
        )

    def _times(self, samples: Sequence[arrivals.Sample]) -> arrivals.FirstTokens:
        answers = [self._checked(sample.exchange, seed=sample.seed) for sample in samples]
        return arrivals.FirstTokens(
            ttft_ms=tuple((s.exchange.first_text - s.exchange.sent) * 1000 for s in samples),
            worker_ms=tuple(answer.phases_ms["prefill"] for answer in answers),
            late_ms=tuple(sample.late_s * 1000 for sample in samples),
        )

    def _checked(self, exchange: Exchange, *, seed: int) -> Answer:
        """The answer, whose text is what the workers sent.

        Raises:
            InternalError: it is not.
        """
        answer = read_answer(exchange)
        if answer.text != self._script.text(seed, answer.completion_tokens):
            raise InternalError(
                f"the answer to seed {seed} is not the text that the workers sent: tokens were "
                "lost, doubled, mixed up or decoded wrongly on the way"
            )
        self._compared += 1
        return answer

    @asynccontextmanager
    async def _stage(self, pace: Pace, logs: Path) -> AsyncIterator[Stage]:
        """Starts everything, and answers once through both arms before anything is measured."""
        async with self._served(pace, logs, folder=self._settings.model_dir) as (workers, gateway):
            relay_command = [
                *_MODULE, "loadtest.gateway_cost.relay",
                "--model-dir", str(self._settings.model_dir),
                "--prefill", workers.ready["prefill"], "--decode", workers.ready["decode"],
            ]  # fmt: skip
            async with running(relay_command, log=logs / "relay.log") as relay:
                stage = Stage(workers=workers, gateway=gateway, relay=relay)
                await self._warm(stage)
                yield stage

    @asynccontextmanager
    async def _served(
        self, pace: Pace, logs: Path, *, folder: Path
    ) -> AsyncIterator[tuple[Running, Running]]:
        """Workers and a gateway of theirs."""
        worker_command = [
            *_MODULE, "loadtest.gateway_cost.workers", "--model-dir", str(folder),
            "--prefill-s", str(pace.prefill_s), "--token-s", str(pace.token_s),
            "--tokens-per-message", str(pace.tokens_per_message),
        ]  # fmt: skip
        async with running(worker_command, log=logs / "workers.log") as workers:
            prefill, decode = workers.ready["prefill"], workers.ready["decode"]
            gateway_command = self._settings.gateway_command(
                ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--model-dir", str(folder),
                 "--prefill-workers", prefill, "--decode-workers", decode]
            )  # fmt: skip
            async with running(gateway_command, log=logs / "gateway.log") as gateway:
                yield workers, gateway

    async def _warm(self, stage: Stage) -> None:
        """Answers of many lengths, side by side: their text must be right first."""
        for arm in ARMS:
            async with AsyncExitStack() as cleanup:
                asked = []
                for seed in range(_WARM_REQUESTS):
                    connection = await connect(stage.address(arm))
                    cleanup.callback(connection.close)
                    request = chat_request(
                        model=MODEL, prompt="Hello.", seed=seed, max_tokens=1 + seed
                    )
                    asked.append(connection.ask(request))
                for seed, exchange in enumerate(await asyncio.gather(*asked)):
                    self._checked(exchange, seed=seed)

    def _prompt(self) -> str:
        """Text of about so many tokens, less those of the chat template."""
        return self._script.text(0, self._settings.prompt_tokens)

    def _sizes(self) -> dict[str, Any]:
        fields = asdict(self._settings)
        del fields["gateway_command"]
        return fields | {"model_dir": str(self._settings.model_dir)}

"""`tandem bench pair`: starts a pair, asks it from outside, prints what each method comes to."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deploy.config import FREE_PORTS
from deploy.local import log_sink, phase_printer
from deploy.page_picture import check_file
from deploy.pair_parity import ParityRequest, ParityRun
from deploy.pair_settings import PairSizes, pair_tables, write_tables
from deploy.pair_tables import print_result
from deploy.role_process import LineSink
from deploy.started_pair import PairStarter
from loadtest.machine import machine_facts
from loadtest.pair.agreement import LEVEL
from loadtest.pair.clients import GrpcClient, HttpClient, PairClient
from loadtest.pair.measure import PairBench
from loadtest.pair.plan import ARMS, GRPC, HTTP, PairPlan
from loadtest.pair.summary import limits_apply, summarize
from loadtest.pair.surroundings import gpu_facts, pair_facts
from shared.errors import ConfigError
from shared.model.catalog import resolve
from shared.model.config import ModelConfig
from shared.model.state import DTYPES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULT_FILE = "pair.json"
PARITY_FILE = "parity.json"
"""What parity came to, written before anything is timed."""
LOGS = "logs"
"""Folder of what the roles print."""
_SETTINGS_FILE = "settings.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRequest:
    """What is measured, and where it runs."""

    plan: PairPlan
    """What is asked."""
    model: str
    """Catalog name or folder; empty: nothing is timed, parity alone is compared."""
    out: Path
    """Folder of the result, the settings and the logs of the roles."""
    url: str = ""
    """Gateway of a pair that runs already; empty starts one."""
    grpc: str = ""
    """Its gRPC address, host:port."""
    prefill_gpus: tuple[int, ...] = ()
    """GPU of the prefill worker; empty: the CPU."""
    decode_gpus: tuple[int, ...] = ()
    """GPU of the decode worker; empty: the CPU."""
    dtype: str = "bfloat16"
    """Of weights and KV."""
    transports: tuple[str, ...] = ("nixl", "grpc")
    """Best first."""
    profile: str = ""
    """Model profile of both workers; empty: the one that belongs to the model."""
    settings_file: Path | None = None
    """Settings of the roles of the pair that is timed; None writes some that are large enough."""
    parity: str = ""
    """Model that a pair on these devices and one on the CPU must agree on; empty: none."""
    parity_dtypes: tuple[str, ...] = ("float32",)
    """Of such a pair's weights and KV, a pair for each; those on the CPU are float32."""
    commit: str = ""
    """Of the code, where it is no git checkout."""
    timeline: Path | None = None
    """PNG of one traced request; None draws none."""

    def __post_init__(self) -> None:
        if self.timeline is not None:
            check_file(self.timeline, flag="--timeline")
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"--dtype cannot be {self.dtype!r}: choose {' or '.join(DTYPES)}", param="dtype"
            )
        if not set(self.parity_dtypes) <= LEVEL.keys():
            raise ConfigError(
                f"--parity-dtypes cannot be {','.join(self.parity_dtypes)!r}: choose among "
                f"{', '.join(LEVEL)}",
                param="parity_dtypes",
            )
        if self.url and not (self.url.startswith("http://") and urlsplit(self.url).hostname):
            raise ConfigError(
                f"--url cannot be {self.url!r}: this benchmark speaks plain HTTP and gRPC, without "
                "TLS; give http://host:port of a gateway that does",
                param="url",
            )
        if bool(self.url) != bool(self.grpc):
            raise ConfigError("a pair that runs is named by both --url and --grpc")
        if self.url and self.parity:
            raise ConfigError(
                "parity is compared on pairs that are started for it: leave --url or --parity out"
            )
        if any((self.out / name).exists() for name in (RESULT_FILE, PARITY_FILE, LOGS)):
            raise ConfigError(f"{self.out} has the files of another run; give another --out")


def run_pair(request: PairRequest, *, command: str, as_json: bool) -> int:
    """Measures, writes the result and prints it.

    Returns:
        Exit code: 1 when tokens were not those of the slow pair, else 0; limits are told, not
        judged, since they are for GPUs of one kind.

    Raises:
        TandemError: a pair did not start, or a request failed.
    """
    request.out.mkdir(parents=True, exist_ok=True)
    facts = machine_facts(command=command)
    if request.commit:
        facts["commit"] = request.commit
    with log_sink(request.out / LOGS) as on_line:
        run = PairRun(request, on_line=on_line, progress=phase_printer())
        measured = asyncio.run(run.all())
    plan = {"plan": dataclasses.asdict(request.plan)} if request.model else {}
    result = {"benchmark": "pair", **measured, **plan, **facts}
    text = json.dumps(result, indent=1)
    (request.out / RESULT_FILE).write_text(text + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(result))
    else:
        print_result(result)
    parity = measured.get("parity")
    return 0 if parity is None or parity["equal"] else 1


class PairRun:
    """One run: parity first, then the times."""

    def __init__(
        self, request: PairRequest, *, on_line: LineSink, progress: Callable[[str], None]
    ) -> None:
        self._request = request
        self._progress = progress
        self._starter = PairStarter(on_line=on_line, tell=progress)

    async def all(self) -> dict[str, Any]:
        """Everything that is measured, JSON-ready."""
        found: dict[str, Any] = {}
        if self._request.parity:
            found["parity"] = await self._parity()
            text = json.dumps(found["parity"], indent=1)
            (self._request.out / PARITY_FILE).write_text(text + "\n", encoding="utf-8")
        return found | (await self._times() if self._request.model else gpu_facts())

    async def _parity(self) -> dict[str, Any]:
        request = self._request
        compared = ParityRequest(
            model=request.parity,
            arms=request.plan.arms,
            out=request.out,
            dtypes=tuple(dict.fromkeys(request.parity_dtypes)),
            transports=request.transports,
            prefill_gpus=request.prefill_gpus,
            decode_gpus=request.decode_gpus,
        )
        config = model_config(request.parity)
        run = ParityRun(compared, config=config, starter=self._starter, tell=self._progress)
        return await run.run()

    async def _times(self) -> dict[str, Any]:
        request = self._request
        config = model_config(request.model)
        if request.url:
            return await asyncio.to_thread(self._ask, request.url, request.grpc, config=config)
        tables = pair_tables(
            config,
            PairSizes.of(request.plan),
            dtype=request.dtype,
            transports=request.transports,
            profile=request.profile,
        )
        up = dataclasses.replace(
            FREE_PORTS,
            model=request.model,
            prefill_gpus=request.prefill_gpus,
            decode_gpus=request.decode_gpus,
        )
        file = request.settings_file or write_tables(tables, request.out / _SETTINGS_FILE)
        async with self._starter.running(up, file, name="pair") as endpoints:
            return await asyncio.to_thread(
                self._ask, endpoints.url, endpoints.gateway.grpc, config=config
            )

    def _ask(self, url: str, grpc: str, *, config: ModelConfig) -> dict[str, Any]:
        clients: dict[str, PairClient] = {HTTP: HttpClient(url), GRPC: GrpcClient(grpc)}
        bench = PairBench(
            self._request.plan,
            clients=clients,
            vocab_size=config.vocab_size,
            progress=self._progress,
        )
        png_file = self._request.timeline
        try:
            if png_file is not None:  # what cannot be drawn is known before minutes are spent
                self._traced(bench)
            found = summarize(bench.run())
            if png_file is not None:
                found["traced"] = self._draw(bench, png_file)
        finally:
            for client in clients.values():
                client.close()
        facts, surroundings = pair_facts(url), gpu_facts()
        if not limits_apply(config, workers=facts["workers"], gpus=surroundings["gpus"]):
            found["limits"] = []
        return {**found, "pair": facts, "settings": self._settings(), **surroundings}

    def _draw(self, bench: PairBench, png_file: Path) -> dict[str, Any]:
        """Draws one request; what it told."""
        from loadtest.figures import png  # matplotlib when drawn

        arm, tokens, report, figure = self._traced(bench)
        png_file.write_bytes(png(figure))
        trace = report["trace"]
        return {
            "arm": arm,
            "prompt_tokens": tokens,
            "ttft_ms": trace["ttft_ms"],
            "waterfall": trace["waterfall"],
            "handoff": trace["prompt"]["handoff"],
        }

    def _traced(self, bench: PairBench) -> "tuple[str, int, Mapping[str, Any], Figure]":
        """Arm, tokens, report and picture of a request of the shortest prompt.

        It is pruned where an arm prunes. The first one compiles what only traces use.
        """
        from loadtest.pair.timeline import timeline_figure  # matplotlib when drawn

        plan = self._request.plan
        arm = next((name for name in plan.arms if ARMS[name].keep_rate), plan.arms[0])
        tokens = min(plan.prompts)
        report = bench.traced(arm, tokens=tokens).report
        figure = timeline_figure(report, title=f"{ARMS[arm].title}, {tokens:,} tokens")
        return arm, tokens, report, figure

    def _settings(self) -> str:
        """The settings file of the pair; empty for one that ran already."""
        path = self._request.settings_file or self._request.out / _SETTINGS_FILE
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def model_config(model: str) -> ModelConfig:
    """The shape of a model that is named or in a folder.

    Raises:
        ModelLoadError: there is none.
    """
    return ModelConfig.from_folder(resolve(model))

"""The command `tandem bench pair`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.lists import names_in, numbers_in
from shared.errors import ConfigError

if TYPE_CHECKING:
    from deploy.bench_pair import PairRequest
    from loadtest.pair.plan import Load, PairPlan  # imported when the command runs

_TIMES = (
    "prompts", "new_tokens", "at_once", "rounds", "warm_ups", "short_rounds", "seed", "dtype",
    "profile", "config", "timeline",
)  # fmt: skip
"""Flags of what is timed."""


def _option(text: str, **more: Any) -> Any:  # noqa: ANN401  typer's own word for an option
    return typer.Option(help=text, **more)


Model = Annotated[
    str, _option("Catalog name or folder, smollm2 if none; --parity without it times nothing.")
]
Out = Annotated[Path, _option("New folder: takes pair.json, the settings and the roles' logs.")]
Arms = Annotated[str, _option("Methods in turn; ratios are to full.")]
Prompts = Annotated[
    str, _option("Prompt tokens; none: those of 10000,32000 that fit, 2000 on a CPU, or what does.")
]
NewTokens = Annotated[int | None, _option("Tokens of an answer; none: 256, on a CPU 32.")]
AtOnce = Annotated[str, _option("Requests side by side; none: 1,16, on a CPU 1,2.")]
Rounds = Annotated[
    str, _option("Rounds of each, in the order of --at-once; none: 4,2, on a CPU 2,1.")
]
WarmUps = Annotated[str, _option("Rounds before them, not counted; none: 1,1, on a CPU 1,0.")]
ShortRounds = Annotated[
    int | None,
    _option("Rounds more, one at a time, for times to first token; none: 6, on a CPU 1."),
]
Seed = Annotated[int, _option("Of the prompts.")]
PrefillGpus = Annotated[str, _option("CUDA number of the prefill worker's GPU; empty: the CPU.")]
DecodeGpus = Annotated[str, _option("CUDA number of the decode worker's GPU; empty: the CPU.")]
Dtype = Annotated[str, _option("Of weights and KV; empty: bfloat16 on GPUs, float32 elsewhere.")]
Transports = Annotated[str, _option("Transports of both workers, best first.")]
Profile = Annotated[str, _option("Model profile of both workers, a name or a TOML file.")]
Config = Annotated[
    Path | None,
    _option("Settings of the roles of the timed pair, instead of sizes that fit the requests."),
]
Url = Annotated[str, _option("Gateway of a pair that runs already.")]
Grpc = Annotated[str, _option("Its gRPC address, host:port.")]
Parity = Annotated[
    str, _option("First compare tokens of this model with a CPU's.", metavar="MODEL")
]
ParityDtypes = Annotated[
    str, _option("Of its weights and KV, a pair for each; those on the CPU are float32.")
]
Timeline = Annotated[
    Path | None, _option("Draw one request: computation against transfer.", metavar="FILE.png")
]
Commit = Annotated[str, _option("Of the code, where it is no git checkout.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def pair(
    ctx: typer.Context,
    model: Model = "",
    out: Out = Path("pair-results"),
    arms: Arms = "full,claa10,claa20,delta,both10",
    prompts: Prompts = "",
    new_tokens: NewTokens = None,
    at_once: AtOnce = "",
    rounds: Rounds = "",
    warm_ups: WarmUps = "",
    short_rounds: ShortRounds = None,
    seed: Seed = 0,
    prefill_gpus: PrefillGpus = "",
    decode_gpus: DecodeGpus = "",
    dtype: Dtype = "",
    transports: Transports = "nixl,grpc",
    profile: Profile = "",
    config: Config = None,
    url: Url = "",
    grpc: Grpc = "",
    parity: Parity = "",
    parity_dtypes: ParityDtypes = "float32",
    timeline: Timeline = None,
    commit: Commit = "",
    as_json: Json = False,
) -> None:
    """A whole pair from outside: first token and tokens a second of each method, by HTTP and gRPC.

    Starts `tandem up` with one worker of each role, sized for the requests, unless --url names a
    pair; variables TANDEM_PREFILL__<FIELD> and TANDEM_DECODE__<FIELD> still count. Methods are
    asked for in each request and take turns; rounds take turns between the two clients. Beside a
    client's times stand those that the pair tells: the engine's own first token, and what of the
    transfer came after the last computation. --parity without --model compares tokens and times
    nothing. Exit code 1: tokens were not those of the slow pair.

    JSON keys: cells (each prompt_tokens, at_once, arms), limits (of two H200s with the 8B shape,
    else none), traced, pair, settings and plan, all of what was timed; parity, gpus, topology,
    command, commit, uncommitted_changes, hardware and python.
    """
    from deploy.bench_pair import PairRequest
    from loadtest.pair.plan import CPU_PLAN

    if parity and not model:
        _refuse_times(ctx)
    asked = _Asked(
        arms=arms, prompts=prompts, new_tokens=new_tokens, at_once=at_once, rounds=rounds,
        warm_ups=warm_ups, short_rounds=short_rounds, seed=seed,
    )  # fmt: skip
    request = PairRequest(
        plan=asked.over(CPU_PLAN), model=model or ("" if parity else "smollm2"), out=out, url=url,
        grpc=grpc, profile=profile, parity=parity,
        parity_dtypes=names_in(parity_dtypes),
        prefill_gpus=_gpus(prefill_gpus, flag="--prefill-gpus"),
        decode_gpus=_gpus(decode_gpus, flag="--decode-gpus"),
        dtype=dtype or ("bfloat16" if prefill_gpus else "float32"),
        transports=names_in(transports), settings_file=config,
        timeline=timeline, commit=commit,
    )  # fmt: skip
    raise typer.Exit(_run(request, asked, as_json=as_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What flags say about a plan."""

    arms: str
    prompts: str
    new_tokens: int | None
    at_once: str
    rounds: str
    warm_ups: str
    short_rounds: int | None
    seed: int

    def over(self, usual: "PairPlan") -> "PairPlan":
        """The usual plan with what was given in its place."""
        from loadtest.pair.plan import PairPlan

        return PairPlan(
            arms=names_in(self.arms),
            prompts=_counts(self.prompts, flag="--prompts") if self.prompts else usual.prompts,
            new_tokens=usual.new_tokens if self.new_tokens is None else self.new_tokens,
            loads=self._loads(usual),
            short_rounds=usual.short_rounds if self.short_rounds is None else self.short_rounds,
            seed=self.seed,
        )

    def _loads(self, usual: "PairPlan") -> "tuple[Load, ...]":
        from loadtest.pair.plan import Load

        columns = (
            ("--at-once", self.at_once, [load.at_once for load in usual.loads]),
            ("--rounds", self.rounds, [load.rounds for load in usual.loads]),
            ("--warm-ups", self.warm_ups, [load.warm_ups for load in usual.loads]),
        )
        counts = [
            _counts(text, flag=flag) if text else tuple(others) for flag, text, others in columns
        ]
        if len({len(column) for column in counts}) > 1:
            raise ConfigError("--at-once, --rounds and --warm-ups are lists of one length, as 1,16")
        return tuple(Load(at_once=a, rounds=r, warm_ups=w) for a, r, w in zip(*counts, strict=True))


def _run(request: "PairRequest", asked: _Asked, *, as_json: bool) -> int:
    """Completes a checked request and runs it; a gateway is asked what its pair runs on."""
    from deploy.bench_gateway import command_line
    from deploy.bench_pair import run_pair
    from deploy.local import phase_printer
    from deploy.pair_fit import fitted, usual_plan

    request = replace(request, plan=asked.over(usual_plan(request)))
    request = fitted(request, prompts_given=bool(asked.prompts), tell=phase_printer())
    return run_pair(request, command=command_line(), as_json=as_json)


def _refuse_times(ctx: typer.Context) -> None:
    """Flags of what is timed would do nothing where nothing is."""
    sources = {name: ctx.get_parameter_source(name) for name in _TIMES}
    given = [name for name, source in sources.items() if source and source.name != "DEFAULT"]
    if given:
        flag = f"--{given[0].replace('_', '-')}"
        raise ConfigError(
            f"{flag} is for what is timed, and --parity without --model times nothing: name a "
            f"--model, or leave {flag} out"
            + ("; --parity-dtypes are those of the compared pairs" if given[0] == "dtype" else ""),
            param=given[0],
        )


def _gpus(text: str, *, flag: str) -> tuple[int, ...]:
    if not text:
        return ()
    gpus = numbers_in(text, flag=flag, kind=int, like="0,1")
    if min(gpus) < 0:
        raise ConfigError(f"{flag} cannot be {text!r}: give CUDA's number of a GPU, as 0")
    return gpus


def _counts(text: str, *, flag: str) -> tuple[int, ...]:
    return numbers_in(text, flag=flag, kind=int, like="1,16")

"""The command `tandem bench pair`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.lists import names_in, numbers_in
from shared.errors import ConfigError

if TYPE_CHECKING:
    from loadtest.pair.plan import Load  # imported when the command runs


def _option(text: str, **more: Any) -> Any:  # noqa: ANN401  typer's own word for an option
    return typer.Option(help=text, **more)


Model = Annotated[str, _option("Catalog name or folder; `tandem model random` makes one.")]
Out = Annotated[Path, _option("Folder that takes pair.json, the settings and the roles' logs.")]
Arms = Annotated[str, _option("Methods in turn; ratios are to full.")]
Prompts = Annotated[
    str, _option("Prompt tokens; empty: those of 10000,32000 that fit, else a length that does.")
]
NewTokens = Annotated[int, _option("Tokens of an answer.")]
AtOnce = Annotated[str, _option("Requests side by side.")]
Rounds = Annotated[str, _option("Rounds of each, in the order of --at-once.")]
WarmUps = Annotated[str, _option("Rounds before them, not counted.")]
ShortRounds = Annotated[int, _option("Rounds more, one at a time, for times to first token only.")]
Seed = Annotated[int, _option("Of the prompts.")]
PrefillGpus = Annotated[str, _option("CUDA number of the prefill worker's GPU; empty: the CPU.")]
DecodeGpus = Annotated[str, _option("CUDA number of the decode worker's GPU; empty: the CPU.")]
Dtype = Annotated[str, _option("Of weights and KV; empty: bfloat16 on GPUs, float32 elsewhere.")]
Transports = Annotated[str, _option("Transports of both workers, best first.")]
Profile = Annotated[str, _option("Model profile of both workers, a name or a TOML file.")]
Config = Annotated[
    Path | None, _option("Settings file of the roles, instead of sizes that fit the requests.")
]
Url = Annotated[str, _option("Gateway of a pair that runs already.")]
Grpc = Annotated[str, _option("Its gRPC address, host:port.")]
Parity = Annotated[
    str, _option("First compare tokens of this model with a CPU's.", metavar="MODEL")
]
Timeline = Annotated[
    Path | None, _option("Draw one request: computation against transfer.", metavar="FILE.png")
]
Commit = Annotated[str, _option("Of the code, where it is no git checkout.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def pair(
    model: Model = "smollm2",
    out: Out = Path("pair-results"),
    arms: Arms = "full,claa10,claa20,delta,both10",
    prompts: Prompts = "",
    new_tokens: NewTokens = 256,
    at_once: AtOnce = "1,16",
    rounds: Rounds = "4,2",
    warm_ups: WarmUps = "1,1",
    short_rounds: ShortRounds = 6,
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
    timeline: Timeline = None,
    commit: Commit = "",
    as_json: Json = False,
) -> None:
    """A whole pair from outside: first token and tokens a second of each method, by HTTP and gRPC.

    Starts `tandem up` with one worker of each role, sized for the requests, unless --url names a
    pair; variables TANDEM_PREFILL__<FIELD> and TANDEM_DECODE__<FIELD> still count. Methods are
    asked for in each request and take turns; rounds take turns between the two clients. Beside a
    client's times stand those that the pair tells: the engine's own first token, and what of the
    transfer came after the last computation. Exit code 1: tokens were not those of the slow pair.

    JSON keys: cells (each prompt_tokens, at_once, arms), limits (of two H200s with the 8B shape,
    else none), parity, traced, pair, settings,
    plan, gpus, topology, command, commit, uncommitted_changes, hardware and python.
    """
    from deploy.bench import progress_to
    from deploy.bench_gateway import command_line
    from deploy.bench_pair import PairRequest, run_pair
    from deploy.pair_fit import fitted
    from loadtest.pair.plan import PROMPTS, PairPlan

    plan = PairPlan(
        arms=names_in(arms), new_tokens=new_tokens,
        prompts=_counts(prompts, flag="--prompts") if prompts else PROMPTS,
        loads=_loads(at_once, rounds, warm_ups), short_rounds=short_rounds, seed=seed,
    )  # fmt: skip
    request = PairRequest(
        plan=plan, model=model, out=out, url=url, grpc=grpc, profile=profile, parity=parity,
        prefill_gpus=_gpus(prefill_gpus, flag="--prefill-gpus"),
        decode_gpus=_gpus(decode_gpus, flag="--decode-gpus"),
        dtype=dtype or ("bfloat16" if prefill_gpus else "float32"),
        transports=names_in(transports), settings_file=config,
        timeline=timeline, commit=commit,
    )  # fmt: skip
    tell = progress_to(as_json=as_json)
    request = fitted(request, prompts_given=bool(prompts), tell=tell)
    raise typer.Exit(run_pair(request, command=command_line(), as_json=as_json))


def _gpus(text: str, *, flag: str) -> tuple[int, ...]:
    if not text:
        return ()
    gpus = numbers_in(text, flag=flag, kind=int, like="0,1")
    if min(gpus) < 0:
        raise ConfigError(f"{flag} cannot be {text!r}: give CUDA's number of a GPU, as 0")
    return gpus


def _counts(text: str, *, flag: str) -> tuple[int, ...]:
    return numbers_in(text, flag=flag, kind=int, like="1,16")


def _loads(at_once: str, rounds: str, warm_ups: str) -> "tuple[Load, ...]":
    from loadtest.pair.plan import Load

    given = {"--at-once": at_once, "--rounds": rounds, "--warm-ups": warm_ups}
    columns = [_counts(text, flag=flag) for flag, text in given.items()]
    if len({len(column) for column in columns}) > 1:
        raise ConfigError("--at-once, --rounds and --warm-ups are lists of one length, as 1,16")
    return tuple(Load(at_once=a, rounds=r, warm_ups=w) for a, r, w in zip(*columns, strict=True))

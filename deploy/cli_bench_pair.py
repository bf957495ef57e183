"""The command `tandem bench pair`."""

from pathlib import Path
from typing import Annotated

import typer


def pair(
    model: Annotated[
        str, typer.Option(help="Catalog name or folder; `tandem model random` makes one.")
    ] = "smollm2",
    out: Annotated[
        Path, typer.Option(help="Folder that takes pair.json, the settings and the roles' logs.")
    ] = Path("pair-results"),
    arms: Annotated[
        str, typer.Option(help="Methods in turn; ratios are to full.")
    ] = "full,claa10,claa20,delta,both10",
    prompts: Annotated[str, typer.Option(help="Prompt tokens.")] = "10000,32000",
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 256,
    at_once: Annotated[str, typer.Option(help="Requests side by side.")] = "1,16",
    rounds: Annotated[str, typer.Option(help="Rounds of each, in the order of --at-once.")] = "4,2",
    warm_ups: Annotated[str, typer.Option(help="Rounds before them, not counted.")] = "1,1",
    short_rounds: Annotated[
        int, typer.Option(help="Rounds more, one at a time, for times to first token only.")
    ] = 6,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    prefill_gpus: Annotated[
        str, typer.Option(help="CUDA number of the prefill worker's GPU; empty: the CPU.")
    ] = "",
    decode_gpus: Annotated[
        str, typer.Option(help="CUDA number of the decode worker's GPU; empty: the CPU.")
    ] = "",
    dtype: Annotated[str, typer.Option(help="Of weights and KV: bfloat16 or float32.")] = "",
    transports: Annotated[
        str, typer.Option(help="Transports of both workers, best first.")
    ] = "nixl,grpc",
    profile: Annotated[
        str, typer.Option(help="Model profile of both workers, a name or a TOML file.")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file of the roles, instead of sizes that fit the requests."),
    ] = None,
    url: Annotated[str, typer.Option(help="Gateway of a pair that runs already.")] = "",
    grpc: Annotated[str, typer.Option(help="Its gRPC address, host:port.")] = "",
    parity: Annotated[
        str,
        typer.Option(metavar="MODEL", help="First compare tokens of this model with a CPU's."),
    ] = "",
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw one request: computation against transfer."),
    ] = None,
    commit: Annotated[str, typer.Option(help="Of the code, where it is no git checkout.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output.")
    ] = False,
) -> None:
    """A whole pair from outside: first token and tokens a second of each method, by HTTP and gRPC.

    Starts `tandem up` with one worker of each role, sized for the requests, unless --url names a
    pair; variables TANDEM_PREFILL__<FIELD> and TANDEM_DECODE__<FIELD> still count. Methods are
    asked for in each request and take turns; rounds take turns between the two clients. Beside a
    client's times stand those that the pair tells: the engine's own first token, and what of the
    transfer came after the last computation. Exit code 1: tokens were not those of the slow pair.

    JSON keys: cells (each prompt_tokens, at_once, arms), limits, parity, traced, pair, settings,
    plan, gpus, topology, command, commit, uncommitted_changes, hardware and python.
    """
    from deploy.bench_gateway import command_line, parse_counts
    from deploy.bench_pair import PairRequest, run_pair
    from loadtest.pair.plan import Load, PairPlan
    from shared.errors import ConfigError

    columns = [parse_counts(text) for text in (at_once, rounds, warm_ups)]
    if len({len(column) for column in columns}) > 1:
        raise ConfigError("--at-once, --rounds and --warm-ups are lists of one length, as 1,16")
    loads = tuple(Load(at_once=a, rounds=r, warm_ups=w) for a, r, w in zip(*columns, strict=True))
    request = PairRequest(
        plan=PairPlan(
            arms=tuple(arms.split(",")),
            prompts=parse_counts(prompts),
            new_tokens=new_tokens,
            loads=loads,
            short_rounds=short_rounds,
            seed=seed,
        ),
        model=model,
        out=out,
        url=url,
        grpc=grpc,
        prefill_gpus=parse_counts(prefill_gpus) if prefill_gpus else (),
        decode_gpus=parse_counts(decode_gpus) if decode_gpus else (),
        dtype=dtype or ("bfloat16" if prefill_gpus else "float32"),
        transports=tuple(transports.split(",")),
        profile=profile,
        settings_file=config,
        parity=parity,
        timeline=timeline,
        commit=commit,
    )
    raise typer.Exit(run_pair(request, command=command_line(), as_json=as_json))

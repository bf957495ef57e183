"""The `tandem bench` sub-commands: flags in, `deploy.bench` does the work."""

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli_bench_engines import FURTHER_FLAGS, decode, kernels, plot, prefill
from deploy.lists import names_in, numbers_in

bench_app = typer.Typer(
    no_args_is_help=True,
    help="Speed of the engines against their peers, of transports, what the gateway costs, load.",
)

Repeats = Annotated[int, typer.Option(min=1, help="Runs of each arm; medians are paired.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


for _name, _engine_bench in (("prefill", prefill), ("decode", decode), ("kernels", kernels)):
    bench_app.command(_name, context_settings=FURTHER_FLAGS)(_engine_bench)
bench_app.command("plot")(plot)


@bench_app.command("transfer")
def transfer(
    sizes: Annotated[str, typer.Option(help="MiB of one transfer, an arm each.")] = "8,64,280,1280",
    transports: Annotated[
        str, typer.Option(help="Transports, separated by commas; all that work here.")
    ] = "",
    memory: Annotated[
        str, typer.Option(help="host, or device: from one GPU's memory to another's, by nixl.")
    ] = "host",
    repeats: Repeats = 5,
    as_json: Json = False,
) -> None:
    """GB/s of every transport between two processes, beside a bare copy in memory; arms alternate.

    Every byte of a first transfer is compared before anything is timed. With device memory the
    bare copy goes from GPU to GPU within one process, and `nixl push` is the time in which bytes
    were under way; `nixl` is, as always, a whole transfer with its greeting and its end.

    JSON keys: sizes (each mib, gbps, share_of_copy, ratio_to_grpc), parity, rejected, memory (kind;
    sender, receiver and topology of devices), allocator, chunk_bytes (of a frame), direct_bytes (of
    a write by nixl), command, commit, hardware, threads.
    """
    from deploy.bench_transfer import run_transfer

    run_transfer(
        sizes=numbers_in(sizes, flag="--sizes", kind=int, like="8,64,280"),
        transports=names_in(transports),
        memory=memory,
        repeats=repeats,
        as_json=as_json,
    )


@bench_app.command("gateway")
def gateway(
    model: Annotated[
        str, typer.Option(help="Catalog name or folder: its tokenizer and chat template are used.")
    ] = "smollm2",
    arrivals: Annotated[float, typer.Option(help="Requests a second, as a Poisson process.")] = 20,
    open_streams: Annotated[int, typer.Option(help="Streams that are open meanwhile.")] = 32,
    seconds: Annotated[float, typer.Option(help="How long requests arrive in one run.")] = 10,
    prompt_tokens: Annotated[
        int, typer.Option(help="Tokens of a prompt, about; tokenizing them is part of the cost.")
    ] = 128,
    streams: Annotated[
        int, typer.Option(min=0, help="Streams side by side in the second part; 0 leaves it out.")
    ] = 32,
    stream_tokens: Annotated[int, typer.Option(help="Tokens of each of those.")] = 1_500,
    tokens_per_message: Annotated[
        str, typer.Option(help="Tokens in one message of a decode worker, one table each.")
    ] = "1,4",
    long_prompts: Annotated[
        str,
        typer.Option(help="Tokens of prompts that come as ready ids, one at a time; 0 sends none."),
    ] = "10000,32000",
    repeats: Repeats = 5,
    seed: Annotated[int, typer.Option(help="Of the arrivals.")] = 0,
    as_json: Json = False,
) -> None:
    """What the gateway adds: simulated workers, a real gateway and a minimal relay, alternating.

    First part: time to first token of arriving requests beside open streams, less the time that
    the workers measured themselves. Second part: the same of long prompts that come as ids, one at
    a time, by HTTP and gRPC. Third part: tokens a second when workers send as fast as they are
    read. A relay of gRPC to SSE without any of the gateway's work is measured in the same run, but
    for the second part. All text of the other two is compared with what the workers sent.

    JSON keys: first_token, long_prompts (by tokens), throughput (by tokens a message), limits,
    parity, sizes, command, commit, uncommitted_changes, hardware and python.
    """
    from deploy.bench_gateway import command_line, gateway_command, run_gateway
    from loadtest.gateway_cost.settings import CostSettings
    from shared.tokenizer.folder import find_model_folder

    settings = CostSettings(
        model_dir=find_model_folder(model),
        gateway_command=gateway_command,
        repeats=repeats,
        seed=seed,
        arrivals_per_s=arrivals,
        open_streams=open_streams,
        seconds=seconds,
        prompt_tokens=prompt_tokens,
        streams=streams,
        stream_tokens=stream_tokens,
        tokens_per_message=numbers_in(
            tokens_per_message, flag="--tokens-per-message", kind=int, like="1,4"
        ),
        long_prompts=()
        if long_prompts == "0"
        else numbers_in(long_prompts, flag="--long-prompts", kind=int, like="10000,32000"),
    )
    run_gateway(settings, command=command_line(), as_json=as_json)


@bench_app.command(
    "serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def serve(
    flags: typer.Context,
    host: Annotated[str, typer.Option(help="URL of the gateway.")] = "http://127.0.0.1:8000",
    out: Annotated[Path, typer.Option(help="Folder that takes the results.")] = Path(
        "load-results"
    ),
    as_json: Json = False,
) -> None:
    """Load on a running gateway, by Locust (extra `loadtest`).

    All further flags are those of `python -m loadtest.load run`; its --help has them. Exit code:
    0 served in time, 1 missed, 7 the client was saturated, 8 broken off, 9 the server was and the
    run was ended early.

    JSON keys: verdict, requests, failures, throughput, goodput_per_s, classes, stages, timeline,
    disturbance, stopped, lag, planned, window_s, server, settings, format, command, commit,
    uncommitted_changes, hardware and python.
    """
    from deploy.bench_serve import run_serve

    raise typer.Exit(run_serve(host=host, out=out, flags=flags.args, as_json=as_json))


@bench_app.command(
    "arms", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def arms(
    flags: typer.Context,
    host: Annotated[str, typer.Option(help="URL of the gateway.")] = "http://127.0.0.1:8000",
    out: Annotated[Path, typer.Option(help="Folder that takes the results.")] = Path("load-arms"),
    names: Annotated[
        str, typer.Option("--arms", help="Methods in turn, the base first.")
    ] = "full,prune,sparse,both",
    colocated_host: Annotated[
        str, typer.Option(help="Gateway of the arm `colocated`, which has no prefill workers.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Runs of each; 3 or more have intervals.")] = 3,
    as_json: Json = False,
) -> None:
    """The same load for full attention, CLAA, DELTA and both, on one running gateway, by turns.

    Which methods run is asked for in each request. One more arm, `colocated`, is full attention on
    a gateway whose decode workers read prompts themselves (`tandem up --prefill 0 --decode 2` is
    on two GPUs what `--prefill 1 --decode 1` is for the pair). The arms of a repeat get the same
    requests at the same moments, and the order is turned around from repeat to repeat. All further
    flags are those of `python -m loadtest.load run` but --mode. Exit code: that of the worst run,
    as `serve` has them.

    JSON keys: verdict, arms, comparison, order, server, one_server, settings, format, command,
    commit, uncommitted_changes, hardware and python.
    """
    from deploy.bench_serve import run_arms

    code = run_arms(
        host=host,
        out=out,
        arms=names,
        repeats=repeats,
        flags=flags.args,
        as_json=as_json,
        colocated_host=colocated_host,
    )
    raise typer.Exit(code)


@bench_app.command(
    "witness", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def witness(
    flags: typer.Context,
    host: Annotated[str, typer.Option(help="URL of the gateway.")] = "http://127.0.0.1:8000",
    out: Annotated[Path, typer.Option(help="Folder that takes the results.")] = Path(
        "load-witness"
    ),
    guidellm: Annotated[
        str, typer.Option(metavar="PROGRAM", help="guidellm's program; the one on PATH.")
    ] = "",
    repeats: Annotated[int, typer.Option(help="Runs of each tool, 3 or more.")] = 5,
    within: Annotated[
        float, typer.Option(metavar="SHARE", help="How far from 1 the ratio may be.")
    ] = 0.1,
    as_json: Json = False,
) -> None:
    """Our p50 time to first token beside guidellm's: the same requests, by turns, one gateway.

    guidellm has a virtual environment of its own; without it this says how to make one. Prompts,
    answer lengths and moments are ours, sent as streamed chat. All further flags are those of
    `python -m loadtest.load run` but --api. Exit code: 0 the interval of the ratio is within the
    bound, 1 it is beyond, 10 it reaches across.

    JSON keys: verdict, within, tool, connect_s, server, settings, ttft_p50, repeats, format,
    command, commit, uncommitted_changes, hardware and python.
    """
    from deploy.bench_serve import run_witness

    own = ["--guidellm", guidellm, "--repeats", str(repeats), "--within", str(within)]
    raise typer.Exit(run_witness(host=host, out=out, flags=[*own, *flags.args], as_json=as_json))

"""`tandem plan` and its sub-commands: flags in, `deploy.plan*` do the work."""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from deploy.lists import numbers_in
from loadtest.load.workloads import Profile
from shared.errors import ConfigError

plan_app = typer.Typer(no_args_is_help=True, invoke_without_command=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profile", help="File of `tandem plan measure`.")
]
Balancer = Annotated[
    str, typer.Option(help="Of the gateway: least_loaded, power_of_two or round_robin.")
]
_WHOLE_TRACE_S = 1e9


Slo = Annotated[
    list[str] | None,
    typer.Option(help="CLASS:ttft=S,tpot=S[,gap=S] instead of a class's own; repeatable."),
]
Rate = Annotated[
    float | None, typer.Option(help="Requests a second; finds the fewest GPUs for them.")
]
Gpus = Annotated[
    str | None,
    typer.Option(
        help="GPU counts; finds the highest rate of each. 1 to 1024 by powers of two when no "
        "--rate is given."
    ),
]
Keep = Annotated[
    str, typer.Option(help="CLAA keep rates, arms each; the profile's own when empty.")
]
Trace = Annotated[Path | None, typer.Option(help="Recorded requests, for --workload trace.")]
Sizes = Annotated[
    str, typer.Option(help="Prompt and answer sizes, and bounds, of a load run: cpu or gpu.")
]
Attainment = Annotated[float, typer.Option(help="Share that must be served in time.")]
Burst = Annotated[
    float, typer.Option(help="Variation of the gaps: 1 is Poisson, 2 to 4 are bursts.")
]
QueueTokens = Annotated[
    int, typer.Option(min=0, help="Prompt tokens that may wait; 0 is any number.")
]
Jobs = Annotated[int, typer.Option(min=0, help="Arms simulated side by side; 0 takes every core.")]


@plan_app.callback()
def plan(
    context: typer.Context,
    profile: ProfileFile = None,
    workload: Annotated[str, typer.Option(help="chat, rag, reasoning, mixed or trace.")] = "chat",
    sizes: Sizes = "gpu",
    slo: Slo = None,
    rate: Rate = None,
    gpus: Gpus = None,
    keep: Keep = "",
    attainment: Attainment = 0.95,
    burst: Burst = 1.0,
    trace: Trace = None,
    balancer: Balancer = "least_loaded",
    queue_tokens: QueueTokens = 0,
    seed: Annotated[int, typer.Option(help="Of arrivals, sizes and choices.")] = 0,
    jobs: Jobs = 0,
    as_json: Json = False,
) -> None:
    """How many GPUs a load needs, and how to split them, by simulation of measured times.

    Compares full attention, CLAA, DELTA and both. With --rate: the fewest GPUs that serve it within
    the bounds, and how the neighbouring splits fare. With --gpus: the best split and the highest
    rate of each size.

    JSON keys: arms (each name, keep_rate, policy, means, idle_attainment, beyond_measured, smallest
    with candidates, sizes), model, workload, sizes_for, slo, attainment, variation, trace, rate,
    rules, seed, profile_origin, command, commit, uncommitted_changes, hardware and python.
    """
    if context.invoked_subcommand is not None:
        _refuse_misplaced(context)
        return
    _need_simpy()
    from deploy.plan import run_plan
    from loadtest.load.settings import Api, LoadSettings
    from loadtest.plan.cluster import GatewayRules
    from loadtest.plan.planning import DEFAULT_SIZES, PlanSettings

    unasked = DEFAULT_SIZES if gpus is None and rate is None else ()
    settings = PlanSettings(
        load=LoadSettings(
            host="",
            out=Path(),
            workload=workload,
            api=Api.CHAT,  # conversations are then refused for what they are
            profile=_size_profile(sizes),
            variation=burst,
            trace=trace,
            seconds=_WHOLE_TRACE_S if trace is not None else 30.0,
            seed=seed,
            slo=tuple(slo or ()),
            attainment=attainment,
        ),
        rate=rate,
        sizes=numbers_in(gpus, flag="--gpus", kind=int, like="1,2,4") if gpus else unasked,
        keep_rates=numbers_in(keep, flag="--keep", kind=float, like="0.2,0.4") if keep else (),
        rules=GatewayRules(balancer=balancer, queue_tokens=queue_tokens),
        jobs=jobs or os.cpu_count() or 1,
    )
    run_plan(_given(profile), settings, command=command_line(), as_json=as_json)


@plan_app.command("measure")
def measure(
    out: Annotated[Path, typer.Option(help="File that takes the profile.")] = Path("measured.json"),
    model: Annotated[str, typer.Option(help="Catalog name, folder or hub id.")] = "smollm2",
    device: Annotated[str, typer.Option(help="As the workers' setting.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="As the workers' setting.")] = "float32",
    threads: Annotated[
        int, typer.Option(min=0, help="Compute threads of a worker; 0: the library's choice.")
    ] = 0,
    tokens: Annotated[str, typer.Option(help="Prompt lengths.")] = "32,128,512,1024,2048,4096",
    keep: Annotated[str, typer.Option(help="Keep rates below 1; 1 is always timed.")] = "0.2",
    batches: Annotated[str, typer.Option(help="Rows of a decode step.")] = "1,2,4,8,16,32",
    contexts: Annotated[str, typer.Option(help="KV slots of a row.")] = "64,512,2048,4096",
    transport: Annotated[str, typer.Option(help="grpc or nixl.")] = "grpc",
    transfers: Annotated[str, typer.Option(help="MiB of a transfer.")] = "1,8,64,280",
    url: Annotated[
        str,
        typer.Option(
            help="Gateway of an idle pair, to measure what lies around compute; none counts as 0."
        ),
    ] = "",
    same_host: Annotated[
        bool, typer.Option("--same-host", help="Time each role beside the other one as well.")
    ] = False,
    max_batch: Annotated[int, typer.Option(min=1, help="As the decode workers' setting.")] = 32,
    kv_bytes: Annotated[int, typer.Option(min=1, help="As the decode workers' setting.")] = 1 << 30,
    slab_bytes: Annotated[int, typer.Option(min=1, help="As the decode workers' setting.")] = 512
    << 20,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each prompt; medians.")] = 5,
) -> None:
    """Times prefill, decode steps and transfers of this machine, and writes them as JSON.

    A pair that is named must be idle, and computes nothing while the engines are timed. With API
    keys, TANDEM_API_KEY must hold one.
    """
    from deploy.plan_measure import run_measure
    from loadtest.plan.measure import MeasureSettings

    settings = MeasureSettings(
        model=model,
        device=device,
        dtype=dtype,
        threads=threads,
        lengths=numbers_in(tokens, flag="--tokens", kind=int, like="512,4096"),
        keep_rates=numbers_in(keep, flag="--keep", kind=float, like="0.2,0.4") if keep else (),
        batches=numbers_in(batches, flag="--batches", kind=int, like="1,8"),
        contexts=numbers_in(contexts, flag="--contexts", kind=int, like="512,4096"),
        repeats=repeats,
        max_batch=max_batch,
        kv_bytes=kv_bytes,
        slab_bytes=slab_bytes,
    )
    run_measure(
        settings,
        out=out,
        transport=transport,
        sizes_mib=numbers_in(transfers, flag="--transfers", kind=int, like="8,64"),
        url=url,
        same_host=same_host,
        command=command_line(),
    )


@plan_app.command("validate")
def validate(
    run: Annotated[Path, typer.Option(help="Results folder of `tandem bench serve`.")],
    profile: ProfileFile = None,
    prefill: Annotated[int, typer.Option(min=1, help="Prefill workers of that run.")] = 1,
    decode: Annotated[int, typer.Option(min=1, help="Decode workers of that run.")] = 1,
    same_host: Annotated[
        bool, typer.Option("--same-host", help="Its workers competed for one machine's cores.")
    ] = False,
    arm: Annotated[str, typer.Option(help="What it served: full, claa, delta or both.")] = "both",
    balancer: Balancer = "least_loaded",
    within: Annotated[float, typer.Option(min=0.0, help="Largest relative error.")] = 0.2,
    as_json: Json = False,
) -> None:
    """Simulates a recorded load run, request by request, beside what was measured.

    Exit code 0 when throughput and p95 TTFT are within the error, else 1.

    JSON keys: figures (by name measured, predicted, relative_error), ok, within, split, arm,
    workload, requests, command, commit, uncommitted_changes, hardware and python.
    """
    _need_simpy()
    from deploy.plan_validate import run_validate
    from loadtest.plan.cluster import Split

    code = run_validate(
        _given(profile),
        run,
        split=Split(prefill=prefill, decode=decode, same_host=same_host),
        arm=arm,
        balancer=balancer,
        within=within,
        command=command_line(),
        as_json=as_json,
    )
    raise typer.Exit(code)


def command_line() -> str:
    """What was typed, to be typed again."""
    return shlex.join(["tandem", *sys.argv[1:]])


def _refuse_misplaced(context: typer.Context) -> None:
    """Flags of a plan before the name of a sub-command would change nothing."""
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"{name} is {value}, which would change nothing: it stands before "
                f"`{context.invoked_subcommand}`; give that command's own flags behind its name"
            )


def _need_simpy() -> None:
    if find_spec("simpy") is None:
        raise ConfigError(
            "simpy is not installed, which runs the simulated events: the extra `loadtest` brings "
            "it; pip install -c constraints.txt -e '.[loadtest]'"
        )


def _given(profile: Path | None) -> Path:
    if profile is None:
        raise ConfigError(
            "no measured profile was named: --profile is missing; make one with "
            "`tandem plan measure` and give --profile FILE"
        )
    return profile


def _size_profile(name: str) -> Profile:
    if name not in list(Profile):
        raise ConfigError(f"--sizes cannot be {name!r}: choose one of {', '.join(Profile)}")
    return Profile(name)

"""`tandem bench prefill|decode|kernels`: flags in; `deploy.bench`, `deploy.bench_cuda` run them."""

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.lists import numbers_in
from shared.types.page_policies import PagePolicyName

FURTHER_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings of commands that hand flags on."""


class BenchDevice(Enum):
    """Where an engine is measured, and by which benchmark."""

    CPU = "cpu"
    CUDA = "cuda"


def _option(text: str, *names: str, least: int | None = None) -> Any:  # noqa: ANN401  an annotation's value
    return typer.Option(*names, help=text, show_default=False, min=least)


Device = Annotated[BenchDevice, typer.Option(help="cpu: a real model; cuda: kernels, at random.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Model = Annotated[str | None, _option("cpu: catalog name, folder or hub id; smollm2.")]
Peers = Annotated[
    str | None, _option("cuda: of cudnn, flash (transformers) and vllm, a list; empty: none.")
]
Shape = Annotated[str | None, _option("cuda: a model's shape, like llama-3.1-8b or r1-qwen-1.5b.")]


def prefill(
    flags: typer.Context,
    device: Device = BenchDevice.CPU,
    model: Model = None,
    shape: Shape = None,
    tokens: Annotated[
        str | None, _option("Prompt tokens, 4096; cuda: a list, 10000,32768,65536.")
    ] = None,
    keep: Annotated[
        str | None, _option("Keep rates, one arm each: 0.2,1.0; cuda: 0.1,0.2,0.4.")
    ] = None,
    lp: Annotated[
        int | None, _option("cpu: pruning layer; the profile's own.", "--lp", least=0)
    ] = None,
    repeats: Annotated[
        str | None, _option("Runs of each arm, 5; cuda: by prompt, 10,10,4.")
    ] = None,
    peers: Peers = None,
    cases: Annotated[
        int | None, _option("cuda: small models that are compared first.", least=1)
    ] = None,
    as_json: Json = False,
) -> None:
    """Time to the first logits of one prompt, full and pruned, beside peers; arms alternate.

    With --device cpu a real model in float32, against transformers. With --device cuda random
    weights of a shape in bfloat16, by kernels, after these were compared with PyTorch; further
    flags are those of `python -m loadtest.micro.prefill_pass`, whose --help has them.

    JSON keys, cpu: arms, ratio_to_transformers, ratio_to_full, parity, pruning, command, commit,
    hardware, threads and the sizes. cuda: parity, attention, tokens (by length: arms, ratios,
    bounds), command, commit, device and versions.
    """
    from deploy.bench import parse_count, run_prefill
    from deploy.bench_cuda import as_flags, refuse, run_kernels

    if device is BenchDevice.CUDA:
        refuse("cuda", {"--model": model, "--lp": lp})
        asked = {
            "--shape": shape,
            "--tokens": tokens,
            "--keep": keep,
            "--repeats": repeats,
            "--peer": peers,
            "--cases": cases,
        }
        lists = {"--tokens": int, "--keep": float, "--repeats": int}
        run_kernels("prefill_pass", [*as_flags(asked, lists=lists), *flags.args], as_json=as_json)
        return
    refuse("cpu", {"--shape": shape, "--peers": peers, "--cases": cases}, further=flags.args)
    run_prefill(
        model=model or "smollm2",
        tokens=parse_count("--tokens", tokens or "4096"),
        keep=list(numbers_in(keep or "0.2,1.0", flag="--keep", kind=float, like="0.2,1.0")),
        lp=lp,
        repeats=parse_count("--repeats", repeats or "5"),
        as_json=as_json,
    )


def decode(
    flags: typer.Context,
    device: Device = BenchDevice.CPU,
    model: Model = None,
    shape: Annotated[
        str | None, _option("cuda: shapes, one case each, a list; those of the documents if none.")
    ] = None,
    context: Annotated[
        str | None, _option("Tokens before the first step, 4096; cuda, with --shape: a list.")
    ] = None,
    batch: Annotated[int | None, _option("cuda, with --shape: rows, 16.", least=1)] = None,
    only: Annotated[str | None, _option("cuda: part of the names of the cases to run.")] = None,
    peers: Peers = None,
    new_tokens: Annotated[int | None, _option("cpu: decode steps of one run, 64.", least=1)] = None,
    page_budget: Annotated[int | None, _option("cpu: page budget K, 16.", least=1)] = None,
    policy: Annotated[
        PagePolicyName | None, _option("cpu: what is compared with dense; delta.")
    ] = None,
    repeats: Annotated[int | None, _option("Runs of each arm, 5; cuda: 12.", least=1)] = None,
    as_json: Json = False,
) -> None:
    """Speed of decode steps, dense and with chosen pages, arms alternating.

    With --device cpu greedy tokens per second of one row of a real model, against transformers.
    With --device cuda whole steps of batches, random weights of a shape in bfloat16: dense, DELTA,
    pruned, both, after logits were compared with PyTorch's; further flags are those of
    `python -m loadtest.micro.decode_step`, whose --help has them.

    JSON keys, cpu: arms, speedup, attended, dense, parity, sparsity, command, commit, hardware,
    threads and the sizes. cuda: tiny, cases (by name: errors, step_ms, device_ms, host_ms, arms),
    command, commit, device and versions.
    """
    from deploy.bench import parse_count, run_decode
    from deploy.bench_cuda import as_flags, refuse, run_kernels

    if device is BenchDevice.CUDA:
        others = {"--new-tokens": new_tokens, "--page-budget": page_budget, "--policy": policy}
        refuse("cuda", {"--model": model, **others})
        asked: dict[str, object] = {"--shape": shape, "--context": context, "--batch": batch}
        asked |= {"--only": only, "--repeats": repeats, "--peer": peers}
        given = as_flags(asked, lists={"--context": int})
        run_kernels("decode_step", [*given, *flags.args], as_json=as_json)
        return
    foreign = {"--shape": shape, "--batch": batch, "--only": only, "--peers": peers}
    refuse("cpu", foreign, further=flags.args)
    run_decode(
        model=model or "smollm2",
        context=parse_count("--context", context or "4096"),
        new_tokens=new_tokens or 64,
        page_budget=page_budget or 16,
        policy=policy or PagePolicyName.DELTA,
        repeats=repeats or 5,
        as_json=as_json,
    )


def kernels(
    flags: typer.Context,
    device: Device = BenchDevice.CUDA,
    only: Annotated[str | None, _option("Part of the names of the sizes to run.")] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Look for faster plans of attention.")] = (
        False
    ),
    as_json: Json = False,
) -> None:
    """Speed of the Triton kernels by themselves, each compared with float64 first.

    With --device cpu the comparison alone runs, at small sizes, by Triton's interpreter
    (TRITON_INTERPRET=1). Further flags are those of `python -m loadtest.micro.kernels`.

    JSON keys: decode and prefill (by size: errors, and on a GPU plan, kernels), copy, command,
    commit, device and versions.
    """
    from deploy.bench_cuda import as_flags, run_kernels

    given = [*as_flags({"--only": only}), *["--sweep"] * sweep, *flags.args]
    run_kernels("kernels", given, device=device.value, as_json=as_json)


def plot(
    files: Annotated[list[Path], typer.Argument(help="Results of benchmarks on a GPU, --json.")],
    out: Annotated[Path, typer.Option(help="Folder that takes the pictures.")] = Path(),
) -> None:
    """Pictures of results: time to first token by length, step time by context (extra `eval`).

    Reads what `bench prefill` and `bench decode` wrote with --device cuda, and whole generations
    of `python -m loadtest.micro.generation`; prints the files that it wrote.
    """
    from loadtest.micro.plots import draw_results

    for path in draw_results(files, out=out):
        print(path)

"""The `tandem eval` sub-commands: flags in, `deploy.evaluate` does the work."""

from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.lists import names_in, numbers_in
from shared.errors import ConfigError

eval_app = typer.Typer(
    no_args_is_help=True, help="What pruning and page selection cost, measured against full."
)

Model = Annotated[str, typer.Option(help="Catalog name, folder or hub id.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Profile = Annotated[str, typer.Option(help="Profile name or TOML file; the model's own if empty.")]
Draft = Annotated[
    str, typer.Option(help="Draft model of speculative prefill; the model itself if empty.")
]
Rankers = Annotated[
    str, typer.Option(help="Methods, comma-separated; all if empty. Controls always run.")
]
Keep = Annotated[str, typer.Option(help="Keep rates, comma-separated.")]
Lengths = Annotated[str, typer.Option(help="Prompt tokens, comma-separated.")]
Seeds = Annotated[int, typer.Option(min=1, help="Prompts of each cell or task.")]
Protocol = Annotated[
    str, typer.Option(help="What rankers see: question included, excluded, or both.")
]
Out = Annotated[Path, typer.Option(help="Results folder.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the results that are there.")]
Json = Annotated[bool, typer.Option("--json", help="The summary on standard output.")]


@eval_app.command("ranking")
def ranking(
    model: Model = "smollm2",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    profile: Profile = "",
    draft: Draft = "",
    rankers: Rankers = "",
    keep: Keep = "0.1,0.2,0.4",
    lengths: Lengths = "1024,2048,4096,7168",
    answers: Annotated[
        int, typer.Option(min=1, help="Right answers of full wanted, at 2k tokens and more.")
    ] = 150,
    timing: Annotated[str, typer.Option(help="Prompt tokens that are timed.")] = "4096,7168",
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each arm.")] = 5,
    out: Out = Path("tandem-eval"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Kept answers of full, time to first token, ablations and correlation by layer.

    JSON keys: runs, own_method, verdicts, rankers, kept_answers, ahead_at_equal_ttft,
    not_above_random, ruler_tasks, longbench_tasks, question_excluded, depth, ablations.
    """
    _run(
        model=_model(model, device, dtype, profile, draft),
        out=out,
        resume=resume,
        as_json=as_json,
        settings={
            "parts": ("timing", "mixture", "ablation", "correlation"),
            "rankers": names_in(rankers),
            "keep": numbers_in(keep, flag="--keep", kind=float, like="0.2,0.4"),
            "mixture_lengths": numbers_in(lengths, flag="--lengths", kind=int, like="1024,4096"),
            "mixture_answers": answers,
            "timing_lengths": numbers_in(timing, flag="--timing", kind=int, like="1024,4096"),
            "timing_repeats": repeats,
        },
    )


@eval_app.command("niah")
def niah(
    model: Model = "smollm2",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    profile: Profile = "",
    draft: Draft = "",
    rankers: Rankers = "",
    keep: Keep = "0.1,0.2,0.4",
    lengths: Lengths = "1024,2048,4096",
    depths: Annotated[str, typer.Option(help="Needle depths, 0 to 1.")] = "0,0.25,0.5,0.75,1",
    seeds: Seeds = 4,
    protocol: Protocol = "included",
    out: Out = Path("tandem-eval"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Needle accuracy by depth and length, in repeated noise and in prose.

    JSON keys: as `tandem eval ranking`.
    """
    _run(
        model=_model(model, device, dtype, profile, draft),
        out=out,
        resume=resume,
        as_json=as_json,
        settings={
            "parts": ("needle",),
            "rankers": names_in(rankers),
            "keep": numbers_in(keep, flag="--keep", kind=float, like="0.2,0.4"),
            "lengths": numbers_in(lengths, flag="--lengths", kind=int, like="1024,4096"),
            "depths": numbers_in(depths, flag="--depths", kind=float, like="0.2,0.4"),
            "seeds": seeds,
            "protocols": parse_protocols(protocol),
        },
    )


@eval_app.command("ruler")
def ruler(
    model: Model = "smollm2",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    profile: Profile = "",
    draft: Draft = "",
    rankers: Rankers = "",
    keep: Keep = "0.1,0.2,0.4",
    length: Annotated[int, typer.Option(min=1, help="Tokens of prompt and answer.")] = 2048,
    seeds: Seeds = 8,
    protocol: Protocol = "included",
    out: Out = Path("tandem-eval"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """RULER's eleven synthetic tasks, made anew; the two that need data sets are left out.

    JSON keys: as `tandem eval ranking`.
    """
    _run(
        model=_model(model, device, dtype, profile, draft),
        out=out,
        resume=resume,
        as_json=as_json,
        settings={
            "parts": ("ruler",),
            "rankers": names_in(rankers),
            "keep": numbers_in(keep, flag="--keep", kind=float, like="0.2,0.4"),
            "ruler_length": length,
            "ruler_samples": seeds,
            "protocols": parse_protocols(protocol),
        },
    )


@eval_app.command("longbench")
def longbench(
    data: Annotated[Path, typer.Argument(help="Folder of LongBench's own jsonl files.")],
    model: Model = "smollm2",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    profile: Profile = "",
    draft: Draft = "",
    rankers: Rankers = "",
    keep: Keep = "0.1,0.2,0.4",
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest prompt; the model's context if not given.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Records of each file; all if not given.")
    ] = None,
    protocol: Protocol = "included",
    out: Out = Path("tandem-eval"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """LongBench's English tasks, from files that you have; longer prompts lose their middle.

    JSON keys: as `tandem eval ranking`.
    """
    _run(
        model=_model(model, device, dtype, profile, draft),
        out=out,
        resume=resume,
        as_json=as_json,
        settings={
            "parts": ("longbench",),
            "rankers": names_in(rankers),
            "keep": numbers_in(keep, flag="--keep", kind=float, like="0.2,0.4"),
            "longbench": data,
            "longbench_samples": samples,
            "longbench_tokens": tokens,
            "protocols": parse_protocols(protocol),
        },
    )


@eval_app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="Results folder of an evaluation.")],
    as_json: Json = False,
) -> None:
    """Draws figures and writes report.html and summary.json from results that are there.

    Of rankings or of page policies, whichever the folder holds.

    JSON keys: as `tandem eval ranking`, or as `tandem eval sparse`.
    """
    from loadtest.sparsity.report import holds_page_results

    if holds_page_results(folder):
        from deploy.evaluate_sparse import run_sparse_report as run_report
    else:
        from deploy.evaluate import run_report

    run_report(folder, as_json=as_json)


@eval_app.command("merge")
def merge(
    out: Annotated[Path, typer.Argument(help="New results folder.")],
    folders: Annotated[list[Path], typer.Argument(help="Results folders, such as of shards.")],
) -> None:
    """Puts results of several processes or machines into one folder; `report` draws it.

    They must be of one model, type and profile. Split rankings with
    `python -m loadtest.quality --shard 1/8 --out part1` and so on, page policies with
    `python -m loadtest.sparsity --policies delta --out part1` and so on.
    """
    from loadtest.sparsity.report import holds_page_results

    if holds_page_results(folders[0]):
        from loadtest.sparsity.records import merge_folders
    else:
        from loadtest.quality.store import merge_folders

    print(f"{merge_folders(folders, out=out)} results in {out}")


def parse_protocols(text: str) -> tuple[str, ...]:
    """One protocol's name, or both.

    Raises:
        ConfigError: another word.
    """
    known: dict[str, tuple[str, ...]] = {
        "included": ("included",),
        "excluded": ("excluded",),
        "both": ("included", "excluded"),
    }
    if text not in known:
        raise ConfigError(f"--protocol cannot be {text!r}: choose among {', '.join(known)}")
    return known[text]


def _model(model: str, device: str, dtype: str, profile: str, draft: str) -> dict[str, str]:
    return {
        "model": model,
        "device": device,
        "dtype": dtype,
        "profile": profile,
        "draft": draft,
    }


def _run(
    *, model: dict[str, str], settings: dict[str, Any], out: Path, resume: bool, as_json: bool
) -> None:
    from deploy.evaluate import run_eval

    run_eval(model=model, settings=settings, out=out, resume=resume, as_json=as_json)

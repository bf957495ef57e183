"""`tandem calibrate`: flags in, a profile out, with progress bars between."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from loadtest.calibration.delta_calibrate import DeltaCalibration
    from loadtest.calibration.profile import Calibration
    from loadtest.calibration.run import WrittenProfile
    from loadtest.calibration.settings import CalibrationSettings
    from loadtest.calibration.sweep import Progress
    from shared.model.profile_record import ModelProfile


Model = Annotated[str, typer.Option(help="Catalog name, folder or hub id.")]
Samples = Annotated[int, typer.Option(min=0, help="Generated needle prompts.")]
Prompts = Annotated[
    Path | None,
    typer.Option(help="Your own prompts: JSON lines with prompt, and answer, needle if known."),
]
Lengths = Annotated[
    str, typer.Option(help="Tokens of generated prompts; 1024,2048,4096,7168 as far as fits.")
]
SavingTarget = Annotated[
    float, typer.Option(help="Token-layers to save at least, as a share of a full prefill.")
]
Keep = Annotated[float | None, typer.Option(help="Keep rate r; the base profile's.")]
DeltaSamples = Annotated[
    int, typer.Option(min=0, help="Generated samples for the Δ-layers; 0 keeps the Δ-layers.")
]
DeltaSteps = Annotated[int, typer.Option(min=1, help="Decode steps recorded of each of them.")]
FullLayers = Annotated[
    int, typer.Option(min=3, help="How many layers read everything, 0 and 1 included.")
]
PageBudget = Annotated[
    int | None, typer.Option(min=3, help="K that Δ-layers are chosen for; the base profile's.")
]
KlSamples = Annotated[
    int, typer.Option(min=0, help="Samples that sets of full layers decode; 0: recall decides.")
]
KlSteps = Annotated[int, typer.Option(min=1, help="Decode steps of each of them.")]
Refine = Annotated[
    int, typer.Option(min=0, help="Rounds that move Δ-layers a little while it helps.")
]
SparsityOnly = Annotated[
    bool, typer.Option("--sparsity-only", help="Δ-layers alone; the rest of the profile stays.")
]
Profile = Annotated[
    str, typer.Option(help="With --sparsity-only: the profile to change; the model's own.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of the generated prompts.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Profile to write; in the cache, where workers find it, if not given."),
]
CacheDir = Annotated[Path | None, typer.Option(help="Model cache.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def calibrate(
    model: Model = "smollm2",
    samples: Samples = 64,
    prompts: Prompts = None,
    lengths: Lengths = "",
    saving_target: SavingTarget = 0.3,
    keep: Keep = None,
    delta_samples: DeltaSamples = 12,
    delta_steps: DeltaSteps = 12,
    full_layers: FullLayers = 5,
    page_budget: PageBudget = None,
    kl_samples: KlSamples = 6,
    kl_steps: KlSteps = 32,
    refine: Refine = 0,
    sparsity_only: SparsityOnly = False,
    profile: Profile = "",
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    out: Out = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Measures at which depth a model can be pruned and its Δ-layers, and writes its profile.

    Sweeps the pruning layer by correlation with the answer-informed oracle, by the needle tokens
    that are kept, and by the answers that stay the same; chooses lp, n, m, W, pool and aggregation
    among the depths that save enough. Repeating it gives the same file. Minutes on a GPU; on a CPU
    ask for fewer samples and shorter lengths. Δ-layers are proposed by recall of attention and by
    its shift, on prose and questions; the set that decodes closest to dense is taken. A few minutes
    on a CPU with --sparsity-only.

    JSON keys: path, profile, model_hash; of pruning, unless --sparsity-only: pruning (lp, n, m, W,
    pool, aggregation, keep_rate), saving, rho, coverage, first_token, answers, prompts,
    answered_right_in_full; of Δ-layers: sparsity (full_layers, chosen_by, page_budget,
    recency_pages, samples, steps, candidates: rule, full_layers, recall, recall_p10, kl,
    agreement).
    """
    given = dict(locals())
    from loadtest.calibration.run import run_calibration
    from loadtest.calibration.summary import summary

    settings = _settings(given)
    with _bars() as progress:
        written = run_calibration(settings, out=out, cache_dir=cache_dir, progress=progress)
    print(json.dumps(report(written)) if as_json else summary(written))


def _settings(given: dict[str, Any]) -> "CalibrationSettings":
    """What is asked for, from flags by name.

    Raises:
        ConfigError: a flag's value cannot be.
    """
    from loadtest.calibration.delta_settings import DeltaSettings
    from loadtest.calibration.settings import CalibrationSettings, parse_lengths

    alike = (
        "model", "samples", "prompts", "saving_target", "seed", "device", "dtype",
        "sparsity_only", "profile",
    )  # fmt: skip
    of_delta = ("full_layers", "page_budget", "kl_samples", "kl_steps", "refine")
    return CalibrationSettings(
        **{name: given[name] for name in alike},
        lengths=parse_lengths(given["lengths"]),
        keep_rate=given["keep"],
        delta=DeltaSettings(
            samples=given["delta_samples"],
            steps=given["delta_steps"],
            **{name: given[name] for name in of_delta},
        ),
    )


def report(written: "WrittenProfile") -> dict[str, Any]:
    """What was chosen and how good it is, JSON-ready."""
    told: dict[str, Any] = {
        "path": str(written.path),
        "profile": written.profile.name,
        "model_hash": written.profile.fit.hash,
    }
    if written.found is not None:
        told |= _pruning_report(written.found, written.profile)
    if written.delta is not None:
        told["sparsity"] = _delta_report(written.delta)
    return told


def _pruning_report(found: "Calibration", profile: "ModelProfile") -> dict[str, Any]:
    pruning = profile.pruning
    pick, agreement = found.chosen.candidate, found.chosen.agreement
    return {
        "pruning": {
            "lp": pruning.pruning_layer,
            "n": pruning.aggregation_window,
            "m": pruning.deferred_layers,
            "W": pruning.observation_window,
            "pool": pruning.pool_kernel,
            "aggregation": pruning.aggregation.value,
            "keep_rate": pruning.keep_rate,
        },
        "saving": found.saving(pruning.pruning_layer),
        "rho": pick.rho,
        "coverage": pick.coverage,
        "first_token": agreement.first_token,
        "answers": agreement.answers,
        "prompts": found.num_samples,
        "answered_right_in_full": found.num_right,
    }


def _delta_report(delta: "DeltaCalibration") -> dict[str, Any]:
    from loadtest.calibration.delta_choice import expected_recall

    recall, low = delta.curves.recall_YY.tolist(), delta.curves.recall_low_YY.tolist()
    return {
        "full_layers": list(delta.best.full_layers),
        "chosen_by": delta.best.rule,
        "page_budget": delta.params.page_budget,
        "recency_pages": delta.params.recency_pages,
        "samples": delta.num_samples,
        "steps": delta.num_steps,
        "candidates": [
            {
                "rule": one.rule,
                "full_layers": list(one.full_layers),
                "recall": expected_recall(one.full_layers, recall),
                "recall_p10": expected_recall(one.full_layers, low),
                "kl": None if one.closeness is None else one.closeness.kl,
                "agreement": None if one.closeness is None else one.closeness.agreement,
            }
            for one in delta.candidates
        ],
    }


@contextmanager
def _bars() -> Iterator["Progress"]:
    """One progress bar a stage, on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def report_progress(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield report_progress

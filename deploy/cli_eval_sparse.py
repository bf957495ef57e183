"""`tandem eval sparse`: the flags of `python -m loadtest.sparsity`, and a report at the end."""

from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.cli_eval import (
    Device,
    Dtype,
    Json,
    Model,
    Out,
    Profile,
    Resume,
)
from deploy.lists import names_in, numbers_in

_NAMES = ("parts", "policies", "needle_prefills", "generation_policies")
_NUMBERS = ("budgets", "needle_lengths", "long_budgets", "strip_layers")


def _list(text: str) -> Any:  # noqa: ANN401  an annotation's value
    return typer.Option(help=f"{text}, comma-separated.")


def _count(text: str) -> Any:  # noqa: ANN401  an annotation's value
    return typer.Option(min=1, help=text)


Parts = Annotated[str, _list("Of teacher, needle, long, generation, ablation")]
Policies = Annotated[str, _list("Page policies; all if empty")]
Budgets = Annotated[str, _list("Page budgets, in pages of 16 tokens")]
KeepRate = Annotated[float | None, typer.Option(help="Keep rate of the pruned prefills.")]
FullLayers = Annotated[str, typer.Option(help="Further sets of full layers: 0,1,2,9;0,1,2,9,17.")]
Temperature = Annotated[float | None, typer.Option(help="Of free generations; 0: greedy.")]
NeedleLengths = Annotated[str, _list("Prompt tokens of the needle questions")]
NeedlePrefills = Annotated[str, _list("Prefills that they are asked after: pruned, whole")]
LongBudgets = Annotated[str, _list("Page budgets of the long texts")]
GenerationPolicies = Annotated[str, _list("Page policies that generate")]
StripLayers = Annotated[str, _list("Layers whose pages are kept")]
Windows = Annotated[int | None, _count("Windows of prose of the teacher part.")]
Context = Annotated[int | None, _count("Prompt tokens of a window.")]
Steps = Annotated[int | None, _count("Decode steps of a window.")]
SampleEvery = Annotated[int | None, _count("Steps between two looks at recall and churn.")]
NeedleAnswers = Annotated[int | None, _count("Questions that full and pruned dense both answer.")]
NeedlePrompts = Annotated[int | None, _count("Questions that are tried at most.")]
LongSamples = Annotated[int | None, _count("Long texts of each kind.")]
LongContext = Annotated[int | None, _count("Prompt tokens of the long texts.")]
LongSteps = Annotated[int | None, _count("Decode steps of the long texts.")]
GenerationTokens = Annotated[int | None, _count("Tokens of a free generation.")]
GenerationContext = Annotated[int | None, _count("Prompt tokens before it.")]
GenerationWindows = Annotated[int | None, _count("Prompts that are continued.")]
GenerationPages = Annotated[int | None, _count("Its page budget.")]
StripSteps = Annotated[int | None, _count("Steps that a page strip keeps at most.")]
AblationSteps = Annotated[int | None, _count("Decode steps of a window of the ablations.")]
AblationWindows = Annotated[int | None, _count("Windows of prose of the ablations.")]
AblationPages = Annotated[int | None, _count("Page budget of ablations over a whole prefill.")]
PrunedPages = Annotated[int | None, _count("Page budget of those over a pruned prefill.")]
AblationAnswers = Annotated[int | None, _count("Answered questions of the ablations.")]
CacheDir = Annotated[Path | None, typer.Option(help="Model cache.")]
Commit = Annotated[str, typer.Option(help="Of the code, where it is no git checkout.")]
MaxSeconds = Annotated[float | None, typer.Option(help="Begin nothing new after this time.")]


def sparse(
    model: Model = "smollm2",
    device: Device = "cpu",
    dtype: Dtype = "float32",
    profile: Profile = "",
    cache_dir: CacheDir = None,
    commit: Commit = "",
    parts: Parts = "",
    policies: Policies = "",
    budgets: Budgets = "",
    keep_rate: KeepRate = None,
    full_layers: FullLayers = "",
    temperature: Temperature = None,
    needle_lengths: NeedleLengths = "",
    needle_prefills: NeedlePrefills = "",
    long_budgets: LongBudgets = "",
    generation_policies: GenerationPolicies = "",
    strip_layers: StripLayers = "",
    windows: Windows = None,
    context: Context = None,
    steps: Steps = None,
    sample_every: SampleEvery = None,
    needle_answers: NeedleAnswers = None,
    needle_prompts: NeedlePrompts = None,
    long_samples: LongSamples = None,
    long_context: LongContext = None,
    long_steps: LongSteps = None,
    generation_tokens: GenerationTokens = None,
    generation_context: GenerationContext = None,
    generation_windows: GenerationWindows = None,
    generation_pages: GenerationPages = None,
    strip_steps: StripSteps = None,
    ablation_steps: AblationSteps = None,
    ablation_windows: AblationWindows = None,
    ablation_pages: AblationPages = None,
    pruned_pages: PrunedPages = None,
    ablation_answers: AblationAnswers = None,
    max_seconds: MaxSeconds = None,
    out: Out = Path("tandem-eval-sparse"),
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Every page policy against dense decode over the same KV: closeness, needles, reads.

    A flag that is not given takes the study's own default.

    JSON keys: runs, teacher, long, generation, ablation, frontier, arms, verdicts, calibration.
    """
    given = dict(locals())
    from deploy.evaluate_sparse import run_sparse_eval

    request = ("model", "device", "dtype", "profile", "cache_dir", "commit", "out", "resume")
    own = {name: given.pop(name) for name in request}
    del given["as_json"]
    run_sparse_eval(request=own, settings=study_values(given), as_json=as_json)


def study_values(given: dict[str, Any]) -> dict[str, Any]:
    """Fields of `StudySettings` from flags; those that were not given are left out.

    Raises:
        ConfigError: a list is none.
    """
    values = {name: value for name, value in given.items() if value not in (None, "")}
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if name in _NAMES:
            values[name] = names_in(value)
        elif name in _NUMBERS:
            values[name] = numbers_in(value, flag=flag, kind=int, like="1024,4096")
        elif name == "full_layers":
            values[name] = tuple(
                numbers_in(part, flag=flag, kind=int, like="0,1,2;0,2,14")
                for part in value.split(";")
            )
    return values

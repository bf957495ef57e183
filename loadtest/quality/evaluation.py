"""One evaluation from flags to results: loads the model, opens the folder, runs the study."""

from dataclasses import dataclass, replace

from loadtest.evaluation import MeasuredModel, Progress
from loadtest.origin import run_of
from loadtest.quality.oracle import OracleSwitches
from loadtest.quality.runner import Setup
from loadtest.quality.settings import StudySettings
from loadtest.quality.store import ResultStore
from loadtest.quality.study import Study
from shared.errors import ConfigError
from shared.model.probe import probe_attention
from shared.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest(MeasuredModel):
    """What is measured, on what, and where results go."""

    settings: StudySettings
    """Parts and sizes."""
    draft: str = ""
    """Draft model of speculative prefill; empty: the model itself, a bound on its quality."""


def run_evaluation(request: EvaluationRequest, *, progress: Progress) -> bool:
    """Runs a study and leaves its results in the request's folder.

    Returns:
        Whether it ran to its end; False when its time was up, so that `resume` goes on.

    Raises:
        ConfigError: the folder has results already, or of another model; a setting does not fit.
        ModelLoadError: the model cannot be loaded.
    """
    store = ResultStore(request.out, resume=request.resume)
    loaded = request.load()
    draft = replace(request, model=request.draft, profile="").load() if request.draft else loaded
    if draft.model.config.vocab_size != loaded.model.config.vocab_size:
        raise ConfigError(
            f"the draft model has a vocabulary of {draft.model.config.vocab_size} and the model "
            f"one of {loaded.model.config.vocab_size}: they must share a tokenizer"
        )
    setup = Setup(
        model=loaded.model,
        attention=probe_attention(loaded.model.device).backend,
        tokenizer=Tokenizer.from_folder(loaded.folder),
        base=loaded.profile.pruning,
        draft=draft.model,
        switches=OracleSwitches(),
    )
    run = store.open_run(
        run_of(loaded, dtype=request.dtype, command=request.command, commit=request.commit)
    )
    study = Study(setup, settings=request.settings, store=store, run=run.run, progress=progress)
    return study.run()

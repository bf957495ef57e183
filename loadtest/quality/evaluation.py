"""One evaluation from flags to results: loads the model, opens the folder, runs the study."""

from dataclasses import dataclass
from pathlib import Path

from loadtest.origin import run_of
from loadtest.quality.oracle import OracleSwitches
from loadtest.quality.runner import Setup
from loadtest.quality.settings import StudySettings
from loadtest.quality.store import ResultStore
from loadtest.quality.study import Progress, Study
from shared.errors import ConfigError
from shared.model.probe import probe_attention
from shared.model.weights import LoadedModel, load_model
from shared.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What is measured, on what, and where results go."""

    out: Path
    """Results folder."""
    settings: StudySettings
    """Parts and sizes."""
    model: str = "smollm2"
    """Catalog name, folder or hub id."""
    device: str = "cpu"
    """PyTorch device."""
    dtype: str = "float32"
    """Type of weights and KV."""
    profile: str = ""
    """Profile name or TOML file; empty: the model's own."""
    draft: str = ""
    """Draft model of speculative prefill; empty: the model itself, a bound on its quality."""
    cache_dir: Path | None = None
    """Model cache."""
    resume: bool = False
    """Go on with results that are there."""
    command: str = ""
    """Command line, for the record."""
    commit: str = ""
    """Commit of the code, where it is no git checkout."""


def run_evaluation(request: EvaluationRequest, *, progress: Progress) -> bool:
    """Runs a study and leaves its results in the request's folder.

    Returns:
        Whether it ran to its end; False when its time was up, so that `resume` goes on.

    Raises:
        ConfigError: the folder has results already, or of another model; a setting does not fit.
        ModelLoadError: the model cannot be loaded.
    """
    store = ResultStore(request.out, resume=request.resume)
    loaded = _load(request, request.model)
    draft = _load(request, request.draft) if request.draft else loaded
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


def _load(request: EvaluationRequest, spec: str) -> LoadedModel:
    return load_model(
        spec,
        dtype=request.dtype,
        device=request.device,
        cache_dir=request.cache_dir,
        profile=request.profile if spec == request.model else "",
    )

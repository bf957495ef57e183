"""One study from flags to results: loads the model, opens the folder, runs the parts."""

from dataclasses import dataclass

from loadtest.evaluation import MeasuredModel, Progress
from loadtest.facts import FactStore
from loadtest.origin import run_of
from loadtest.sparsity.layer_evidence import CURVES
from loadtest.sparsity.records import CalibrationFact, open_store
from loadtest.sparsity.settings import StudySettings
from loadtest.sparsity.study import Setup, Study
from shared.model.probe import probe_attention
from shared.model.profile import profile_path
from shared.model.profile_toml import read_evidence
from shared.model.weights import LoadedModel
from shared.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest(MeasuredModel):
    """What is measured, on what, and where results go."""

    settings: StudySettings
    """Parts and sizes."""


def run_evaluation(request: EvaluationRequest, *, progress: Progress) -> bool:
    """Runs a study and leaves its results in the request's folder.

    Returns:
        Whether it ran to its end; False when its time was up, so that `resume` goes on.

    Raises:
        ConfigError: the folder has results already, or of another model; a setting does not fit.
        ModelLoadError: the model cannot be loaded.
    """
    store = open_store(request.out, resume=request.resume)
    loaded = request.load()
    setup = Setup(
        model=loaded.model,
        attention=probe_attention(loaded.model.device).backend,
        tokenizer=Tokenizer.from_folder(loaded.folder),
        pruning=loaded.profile.pruning,
        sparsity=loaded.profile.sparsity,
    )
    run = store.open_run(
        run_of(
            loaded,
            dtype=request.dtype,
            command=request.command,
            commit=request.commit,
            with_sparsity=True,
        )
    )
    _keep_curves(store, loaded, request, run=run.run)
    study = Study(setup, settings=request.settings, store=store, run=run.run, progress=progress)
    return study.run()


def _keep_curves(
    store: FactStore, loaded: LoadedModel, request: EvaluationRequest, *, run: int
) -> None:
    """Notes the curves behind the profile's Δ-layers, where they were calibrated."""
    path = profile_path(
        request.profile,
        config=loaded.model.config,
        model_hash=loaded.model.identity(loaded.name).model_hash,
        cache_dir=request.cache_dir,
    )
    curves = {} if path is None else read_evidence(path).get(CURVES, {})
    fact = CalibrationFact(run=run, curves=curves)
    if curves and fact.key not in store:
        store.append([fact])

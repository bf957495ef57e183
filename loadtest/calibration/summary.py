"""A calibration in a few lines."""

from loadtest.calibration.delta_calibrate import DeltaCalibration
from loadtest.calibration.delta_choice import expected_recall
from loadtest.calibration.profile import Calibration
from loadtest.calibration.run import WrittenProfile
from shared.model.profile_record import ModelProfile


def summary(written: WrittenProfile) -> str:
    """What was chosen and how good it is, in a few lines."""
    parts = []
    if written.found is not None:
        parts.append(_pruning_summary(written.found, written.profile))
    if written.delta is not None:
        parts.append(_delta_summary(written.delta))
    return "\n".join([*parts, f"written to {written.path}"])


def _pruning_summary(found: Calibration, profile: ModelProfile) -> str:
    pruning = profile.pruning
    pick, agreement = found.chosen.candidate, found.chosen.agreement
    measures = {
        "rho": pick.rho,
        "coverage": pick.coverage,
        "first token": agreement.first_token,
        "answers kept": agreement.answers,
    }
    told = ", ".join(f"{name} {value:.3f}" for name, value in measures.items() if value is not None)
    return (
        f"lp {pruning.pruning_layer}, n {pruning.aggregation_window}, "
        f"W {pruning.observation_window}, pool {pruning.pool_kernel}, m {pruning.deferred_layers}, "
        f"{pruning.aggregation.value}: saves {found.saving(pruning.pruning_layer):.1%} of the "
        f"token-layers at {found.keep_rate:g} kept\n"
        f"{told} ({found.num_samples} prompts, {found.num_right} answered right in full)"
    )


def _delta_summary(delta: DeltaCalibration) -> str:
    recall = delta.curves.recall_YY.tolist()
    told = [
        f"full layers {','.join(map(str, one.full_layers))} by {one.rule}"
        f"{' (chosen)' if one is delta.best else ''}: recall "
        f"{expected_recall(one.full_layers, recall):.3f}"
        + (f", KL {one.closeness.kl:.4f}" if one.closeness is not None else "")
        for one in delta.candidates
    ]
    where = (
        f"{delta.num_samples} samples, {delta.num_steps} steps, {delta.params.page_budget} pages"
    )
    return "\n".join([*told, f"({where})"])

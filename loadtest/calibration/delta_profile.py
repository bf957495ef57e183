"""What a calibration of Δ-layers found: the profile's page selection and the curves behind it."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from loadtest.calibration.delta_calibrate import DeltaCalibration
from loadtest.calibration.delta_choice import Matrix, expected_recall, weighted_recall
from loadtest.calibration.origin import origin
from loadtest.sparsity.layer_evidence import FIRST_DELTA, REFINED, SHIPPED
from shared.model.profile_record import ModelFit, ModelProfile
from shared.model.weights import LoadedModel

_DIGITS = 4
_MATRIX_DIGITS = 3


def with_delta_layers(profile: ModelProfile, found: DeltaCalibration) -> ModelProfile:
    """The profile with the chosen full layers, and K where the calibration was given one."""
    sources = {**_sources(profile), "sparsity.full_layers": _source(found)}
    if found.params.page_budget != profile.sparsity.page_budget:
        sources["sparsity.page_budget"] = "given to the calibration of full_layers"
    return replace(profile, sparsity=found.chosen, sources=sources)


def delta_only_profile(loaded: LoadedModel, found: DeltaCalibration) -> ModelProfile:
    """The model's profile with nothing changed but its page selection, for exactly its weights."""
    config = loaded.model.config
    fit = ModelFit(
        family=config.family,
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        hash=loaded.model.identity(loaded.name).model_hash,
    )
    return replace(with_delta_layers(loaded.profile, found), name=loaded.name, fit=fit)


def delta_evidence(
    found: DeltaCalibration,
    loaded: LoadedModel,
    *,
    command: str,
    commit: str,
) -> dict[str, Any]:
    """Both curves and every set of full layers, as the profile keeps them; equal runs are equal.

    Args:
        found: what was measured.
        loaded: the model.
        command: that gives the same.
        commit: of the code; empty asks git.
    """
    curves = found.curves
    recall, low = curves.recall_YY.tolist(), curves.recall_low_YY.tolist()
    turn = curves.turn_Y.tolist()
    sets = {one.rule: one.full_layers for one in found.candidates}
    closeness = [one.closeness for one in found.candidates if one.closeness is not None]
    expected: dict[str, Any] = {
        "set": list(sets),
        "recall": _rounded([expected_recall(layers, recall) for layers in sets.values()]),
        "low_recall": _rounded([expected_recall(layers, low) for layers in sets.values()]),
        "weighted_recall": _rounded([weighted_recall(s, recall, turn) for s in sets.values()]),
    }
    if closeness:
        expected["kl"] = _rounded([one.kl for one in closeness])
        expected["agreement"] = _rounded([one.agreement for one in closeness])
    return {
        **origin(loaded, command=command, commit=commit),
        "samples": found.num_samples,
        "steps": found.num_steps,
        "page_budget": found.params.page_budget,
        "recency_pages": found.params.recency_pages,
        "chosen_by": found.best.rule,
        "by_layer": {
            "shift": _rounded(curves.shift_Y.tolist()),
            "shift_with_sinks": _rounded(curves.shift_with_sinks_Y.tolist()),
            "turn": _rounded(turn),
        },
        "full_layers": {name: list(layers) for name, layers in sets.items()},
        "expected": expected,
        "recall": _rows(recall),
        "low_recall": _rows(low),
    }


def _source(found: DeltaCalibration) -> str:
    best = found.best
    recall = expected_recall(best.full_layers, found.curves.recall_YY.tolist())
    closest = (
        ""
        if best.closeness is None
        else f" was the closest of the proposals (KL {best.closeness.kl:.4f} from dense)"
    )
    return (
        f"calibrated: {_set_words(best.rule)}{closest}; {recall:.1%} of sparse layers' attention "
        f"in {found.params.page_budget} pages, {found.num_samples} samples"
    )


def _set_words(rule: str) -> str:
    """The set that a rule proposes, as a sentence names it."""
    if rule == SHIPPED:
        return "the shipped set"
    if rule.startswith(REFINED):
        return "a refined set"
    return f"the set by {rule.replace('_', ' ')}"


def _rows(matrix: Matrix) -> dict[str, list[float]]:
    """Recall of all later layers by each layer that may plan."""
    return {
        f"layer_{layer}": [round(value, _MATRIX_DIGITS) for value in matrix[layer][layer + 1 :]]
        for layer in range(FIRST_DELTA, len(matrix) - 1)
    }


def _sources(profile: ModelProfile) -> dict[str, str]:
    """Sources of every value, those without one told as the profile's."""
    found = dict(profile.sources)
    for section, params in (("pruning", profile.pruning), ("sparsity", profile.sparsity)):
        for field in fields(params):
            if getattr(params, field.name) != field.default:
                found.setdefault(f"{section}.{field.name}", profile.source)
    return found


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, _DIGITS) for value in values]

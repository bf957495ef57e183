"""Finds the profile of a model: the parameters of both methods, each value with its source."""

import logging
from dataclasses import replace
from pathlib import Path

from shared.errors import ConfigError
from shared.model.config import ModelConfig
from shared.model.profile_record import ModelProfile
from shared.model.profile_toml import read_profile
from shared.tokenizer.folder import default_cache_dir
from shared.types.methods import Aggregation, KvSelect, PruningParams, SparsityParams

PAPER = "paper"
"""Name of the preset that follows the papers to the letter, for any depth."""

_FOLDER = Path(__file__).with_name("profiles")
_log = logging.getLogger(__name__)


def load_profile(
    spec: str = "", *, config: ModelConfig, model_hash: str = "", cache_dir: Path | None = None
) -> ModelProfile:
    """The profile of a model.

    Without `spec`: the one that `tandem calibrate` wrote for exactly these weights, else the
    shipped one of this shape, else the default with a warning.

    Args:
        spec: empty, `paper`, a shipped profile's name, or a .toml path.
        config: the model that it is for.
        model_hash: hash of its weights; empty when they are not at hand.
        cache_dir: where calibrated profiles are; None takes the default cache.

    Raises:
        ConfigError: no such profile, a bad file, or a profile of another model.
    """
    if spec == PAPER:
        return paper_profile(config)
    path = profile_path(spec, config=config, model_hash=model_hash, cache_dir=cache_dir)
    if path is None:
        return default_profile(config)
    profile = read_profile(path)
    if spec or path == calibrated_path(model_hash, cache_dir):
        return _fitting(profile, config, model_hash=model_hash)
    return _of_this_shape(_fitting(profile, config, model_hash=""), model_hash)


def profile_path(
    spec: str = "", *, config: ModelConfig, model_hash: str = "", cache_dir: Path | None = None
) -> Path | None:
    """The file that `load_profile` reads for the same arguments; None where it reads none.

    Raises:
        ConfigError: no such profile.
    """
    if spec:
        if spec == PAPER:
            return None
        return Path(spec).expanduser() if spec.endswith(".toml") else _shipped(spec)
    own = calibrated_path(model_hash, cache_dir)
    return own if model_hash and own.is_file() else _shipped_path(config)


def shipped_profile(config: ModelConfig) -> ModelProfile | None:
    """The shipped profile of a model's shape; None where there is none."""
    path = _shipped_path(config)
    return None if path is None else _fitting(read_profile(path), config, model_hash="")


def _shipped_path(config: ModelConfig) -> Path | None:
    paths = sorted(_FOLDER.glob("*.toml"))
    return next((path for path in paths if read_profile(path).fit.describes(config)), None)


def calibrated_path(model_hash: str, cache_dir: Path | None = None) -> Path:
    """Where the profile that was calibrated on the weights of this hash belongs."""
    root = cache_dir if cache_dir is not None else default_cache_dir()
    return root / "profiles" / f"{model_hash}.toml"


def base_profile(config: ModelConfig) -> ModelProfile:
    """What a calibration starts from: the shipped profile of this shape, or the defaults."""
    shipped = shipped_profile(config)
    return _defaults(config) if shipped is None else shipped


def paper_profile(config: ModelConfig) -> ModelProfile:
    """The papers' values, layers scaled to the model's depth; token 0 has no protection."""
    return _scaled(config, name=PAPER, source="the papers' defaults", protect_first=False)


def default_profile(config: ModelConfig) -> ModelProfile:
    """For a model without a profile: the papers' values, token 0 protected, and a log line."""
    _log.warning(
        "no profile for a %s model of %d layers: using the papers' defaults, which may prune at a "
        "poor depth; run `tandem calibrate` to measure the right one",
        config.family,
        config.num_layers,
    )
    return _defaults(config)


def profile_names() -> list[str]:
    """Names of the shipped profiles, and `paper`."""
    return [*sorted(path.stem for path in _FOLDER.glob("*.toml")), PAPER]


def _defaults(config: ModelConfig) -> ModelProfile:
    return _scaled(
        config, name="default", source="the papers' defaults, token 0 protected", protect_first=True
    )


def _scaled(config: ModelConfig, *, name: str, source: str, protect_first: bool) -> ModelProfile:
    depth = config.num_layers
    pruning_layer = max(depth // 2 - 1, 0)
    full = {0, 1, 2, depth // 2, depth * 11 // 14}
    return ModelProfile(
        name=name,
        pruning=PruningParams(
            pruning_layer=pruning_layer,
            aggregation_window=min(4, pruning_layer + 1),
            deferred_layers=min(4, depth),
            aggregation=Aggregation.SUM_MAX,
            kv_select=KvSelect.HEAD,
            protect_first=protect_first,
        ),
        sparsity=SparsityParams(
            full_layers=tuple(sorted(layer for layer in full if layer < depth)),
            page_budget=64,
            recency_pages=8,
        ),
        source=source,
    )


def _shipped(name: str) -> Path:
    path = _FOLDER / f"{name}.toml"
    if path.name == f"{name}.toml" and path.is_file():
        return path
    raise ConfigError(
        f"profile {name!r} is unknown: it is none of {', '.join(profile_names())} and no path "
        "ending in .toml; "
        "choose one of these, or leave the setting empty"
    )


def _of_this_shape(profile: ModelProfile, model_hash: str) -> ModelProfile:
    """A profile that was found by shape; of other weights it is not a calibrated one any more."""
    if model_hash and profile.fit.hash and profile.fit.hash != model_hash:
        _log.warning(
            "profile %s was calibrated on other weights of this shape (%.12s, these are %.12s); "
            "run `tandem calibrate` to measure these",
            profile.name,
            profile.fit.hash,
            model_hash,
        )
        return replace(profile, calibrated=False)
    return profile


def _fitting(profile: ModelProfile, config: ModelConfig, *, model_hash: str) -> ModelProfile:
    """Returns `profile`, or refuses it with the value that does not fit the model."""
    depth, pruning, fit = config.num_layers, profile.pruning, profile.fit
    correction_layer = profile.sparsity.correction_layer
    checks = (
        (fit.num_layers in (None, depth), f"it was made for {fit.num_layers} layers"),
        (pruning.pruning_layer < depth, f"pruning_layer {pruning.pruning_layer}"),
        (pruning.deferred_layers <= depth, f"deferred_layers {pruning.deferred_layers}"),
        (
            pruning.aggregation_window <= pruning.pruning_layer + 1,
            f"aggregation_window {pruning.aggregation_window}",
        ),
        (
            profile.sparsity.full_layers[-1] < depth,
            f"full layer {profile.sparsity.full_layers[-1]}",
        ),
        (
            correction_layer is None or correction_layer < depth - 1,
            f"correction_layer {correction_layer}",
        ),
        (
            not (model_hash and fit.hash) or fit.hash == model_hash,
            f"it was calibrated on the weights {fit.hash:.12}, these are {model_hash:.12}",
        ),
    )
    for fits, text in checks:
        if not fits:
            raise ConfigError(
                f"profile {profile.name!r} does not fit a model of {depth} layers ({text}): it "
                "was made for another model; choose another profile or "
                f"{PAPER!r}, or write one for this model with `tandem calibrate`"
            )
    return profile

"""Parameters of both methods for one model, each value with its source (profiles/*.toml)."""

import difflib
import logging
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from shared.errors import ConfigError
from shared.model.config import ModelConfig
from shared.types.methods import Aggregation, KvSelect, PruningParams, SparsityParams

PAPER = "paper"
"""Name of the preset that follows the papers to the letter, for any depth."""

_FOLDER = Path(__file__).with_name("profiles")
_ENUMS: dict[str, type[Enum]] = {"aggregation": Aggregation, "kv_select": KvSelect}
_TYPES: dict[str, tuple[type, ...]] = {
    "keep_rate": (float, int),
    "protect_first": (bool,),
    "full_layers": (list,),
}
"""Types of the values that are neither an enum nor a whole number."""
_SHAPE_KEYS = ("family", "num_layers", "hidden_size", "vocab_size")
_log = logging.getLogger(__name__)

Params = TypeVar("Params", PruningParams, SparsityParams)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What a model is pruned and sparsified with, unless a request says otherwise."""

    name: str
    """File name without its ending, or `paper` or `default`."""
    pruning: PruningParams
    """CLAA."""
    sparsity: SparsityParams
    """DELTA."""
    source: str
    """Where the values come from, in a sentence."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """`pruning.keep_rate` and so on to the source of that value."""


def load_profile(spec: str = "", *, config: ModelConfig) -> ModelProfile:
    """The profile of a model.

    Args:
        spec: empty (by the model's shape), `paper`, a shipped profile's name, or a .toml path.
        config: the model that it is for.

    Raises:
        ConfigError: no such profile, a bad file, or a profile that does not fit the model.
    """
    if spec == PAPER:
        return paper_profile(config)
    if spec.endswith(".toml"):
        return _fitting(_read(Path(spec).expanduser())[0], config)
    if spec:
        return _fitting(_read(_shipped(spec))[0], config)
    for path in sorted(_FOLDER.glob("*.toml")):
        profile, shape = _read(path)
        if all(getattr(config, key) == value for key, value in shape.items()):
            return _fitting(profile, config)
    return default_profile(config)


def paper_profile(config: ModelConfig) -> ModelProfile:
    """The papers' values, layers scaled to the model's depth; token 0 has no protection."""
    return _scaled(config, name=PAPER, source="the papers' defaults", protect_first=False)


def default_profile(config: ModelConfig) -> ModelProfile:
    """For a model without a profile: the papers' values, token 0 protected, and a log line."""
    _log.warning(
        "no profile for a %s model of %d layers: using the papers' defaults, which may prune at a "
        "poor depth",
        config.family,
        config.num_layers,
    )
    return _scaled(
        config, name="default", source="the papers' defaults, token 0 protected", protect_first=True
    )


def profile_names() -> list[str]:
    """Names of the shipped profiles, and `paper`."""
    return [*sorted(path.stem for path in _FOLDER.glob("*.toml")), PAPER]


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


def _read(path: Path) -> tuple[ModelProfile, dict[str, Any]]:
    """The profile of a file, and the model shape that it names (empty: any)."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"profile {path} cannot be read ({error}): the path or the TOML is wrong; correct it"
        ) from error
    _known(raw, ("source", "model", "pruning", "sparsity"), where=str(path))
    shape = raw.get("model", {})
    _known(shape, _SHAPE_KEYS, where=f"{path} [model]")
    sources: dict[str, str] = {}
    profile = ModelProfile(
        name=path.stem,
        pruning=_params(
            PruningParams, raw.get("pruning", {}), where=(path, "pruning"), sources=sources
        ),
        sparsity=_params(
            SparsityParams, raw.get("sparsity", {}), where=(path, "sparsity"), sources=sources
        ),
        source=str(raw.get("source", "")),
        sources=sources,
    )
    return profile, shape


def _params(
    cls: type[Params], table: Mapping[str, Any], *, where: tuple[Path, str], sources: dict[str, str]
) -> Params:
    path, section = where
    label = f"{path} [{section}]"
    _known(table, tuple(f.name for f in fields(cls)), where=label)
    values: dict[str, Any] = {}
    for key, entry in table.items():
        if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
            raise ConfigError(
                f'{label} {key}: every entry is {{ value = ..., source = "..." }}, so that each '
                "value says where it "
                "comes from; write it so"
            )
        values[key] = _value(key, entry["value"], where=label)
        sources[f"{section}.{key}"] = str(entry["source"])
    try:
        return cls(**values)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{label}: {error}; complete or correct the profile") from error


def _value(key: str, value: Any, *, where: str) -> Any:  # noqa: ANN401 - TOML values are of any type
    if key in _ENUMS:
        known = [member.value for member in _ENUMS[key]]
        if value not in known:
            raise ConfigError(
                f"{where} {key} is {value!r}: it must be one of {', '.join(known)}; correct it"
            )
        return _ENUMS[key](value)
    wanted = _TYPES.get(key, (int,))
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        names = " or ".join(kind.__name__ for kind in wanted)
        raise ConfigError(f"{where} {key} is {value!r}: it must be of type {names}; correct it")
    return tuple(value) if isinstance(value, list) else value


def _known(table: Mapping[str, Any], names: tuple[str, ...], *, where: str) -> None:
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{where} has an unknown key {key!r}{hint}; known: {', '.join(names)}"
            )


def _fitting(profile: ModelProfile, config: ModelConfig) -> ModelProfile:
    """Returns `profile`, or refuses it with the value that does not fit the model's depth."""
    depth, pruning = config.num_layers, profile.pruning
    checks = (
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
    )
    for fits, text in checks:
        if not fits:
            raise ConfigError(
                f"profile {profile.name!r} does not fit a model of {depth} layers ({text}): it "
                "was made for another "
                f"model; choose another profile, or {PAPER!r}"
            )
    return profile

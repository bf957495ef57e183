"""What is compared: every ranking method at every keep rate, and one parameter varied at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from loadtest.quality.summary import CONTROLS, FULL, ORACLE
from prefill_service.ranking.registry import ranker_registry
from shared.errors import ConfigError
from shared.types.methods import Aggregation, KvSelect, PruningParams

DEFERRED_ORACLE = "oracle-deferred"
"""The oracle's ranking in the architecture of the profile: its first m layers stay whole."""
_DEPTHS = 8
"""Pruning layers of an ablation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to read a prompt."""

    name: str
    """As tables show it."""
    params: PruningParams
    """All of it."""

    @property
    def rate(self) -> float:
        """Keep rate asked for."""
        return self.params.keep_rate

    @property
    def needs_oracle(self) -> bool:
        """Whether it ranks by the oracle's scores."""
        return self.params.ranker == ORACLE


def ranker_names() -> list[str]:
    """Every arm name that `ranker_arms` knows."""
    return [*ranker_registry().names(), DEFERRED_ORACLE]


def full_arm(base: PruningParams) -> Arm:
    """Everything is kept."""
    return Arm(name=FULL, params=replace(_plain_rate(base), ranker=FULL, keep_rate=1.0))


def ranker_arms(base: PruningParams, *, names: Sequence[str], rates: Sequence[float]) -> list[Arm]:
    """Each named method at each rate, controls always among them; full is an arm of its own.

    All keep floor(rate x tokens): the profile's floor on the kept count and its count by mass are
    left out here, or a rate would not mean the same for every length.

    Raises:
        ConfigError: an unknown name, or a rate outside (0, 1).
    """
    unknown = sorted(set(names) - set(ranker_names()))
    if unknown:
        raise ConfigError(
            f"unknown ranking method {unknown[0]!r}: known are {', '.join(ranker_names())}"
        )
    if any(not 0.0 < rate < 1.0 for rate in rates) or not rates:
        raise ConfigError(f"keep rates {list(rates)}: give at least one, above 0 and below 1")
    pure = _plain_rate(base)
    wanted = [name for name in dict.fromkeys([*names, *CONTROLS]) if name != FULL]
    return [
        Arm(name=name, params=_of_method(pure, name, rate=rate))
        for name in wanted
        for rate in rates
    ]


def _plain_rate(base: PruningParams) -> PruningParams:
    """The same parameters with nothing but the keep rate deciding how many tokens are kept."""
    return replace(base, min_keep=0, bypass_below=0, mass=None)


def _of_method(base: PruningParams, name: str, *, rate: float) -> PruningParams:
    if name == DEFERRED_ORACLE:
        return replace(base, ranker=ORACLE, keep_rate=rate)
    # The oracle by itself keeps no layer whole, so that its cache is the smallest of all.
    deferred = 0 if name == ORACLE else base.deferred_layers
    return replace(base, ranker=name, keep_rate=rate, deferred_layers=deferred)


def profile_arms(base: PruningParams, *, floors: Sequence[int]) -> list[Arm]:
    """The profile as it is served, and with other floors on the kept count."""
    served = f"{base.ranker}+floor={base.min_keep}"
    found = {served: base}
    for floor in floors:
        found.setdefault(
            f"{base.ranker}+floor={floor}", replace(base, min_keep=floor, bypass_below=0)
        )
    return [Arm(name=name, params=params) for name, params in found.items()]


def ablation_arms(base: PruningParams, *, num_layers: int) -> list[Arm]:
    """The profile with one parameter changed at a time; its own values are among them."""
    base = _plain_rate(base)
    sweeps: dict[str, tuple[str, Sequence[Any]]] = {
        "lp": ("pruning_layer", _depths(num_layers, base.pruning_layer)),
        "n": ("aggregation_window", (1, 2, 3, 4, 6, 8)),
        "m": ("deferred_layers", (0, 1, 2, 4, 6, 8)),
        "W": ("observation_window", (1, 4, 8, 16, 32)),
        "keep": ("keep_rate", (0.05, 0.1, 0.2, 0.4, 0.6)),
        "pool": ("pool_kernel", (1, 3, 7, 13)),
        "agg": ("aggregation", tuple(Aggregation)),
        "kv": ("kv_select", tuple(KvSelect)),
    }
    arms = []
    for label, (field, values) in sweeps.items():
        for value in sorted({*values, getattr(base, field)}, key=_order):
            params = replace(base, **{field: value})
            if params.aggregation_window > params.pruning_layer + 1:
                params = replace(params, aggregation_window=params.pruning_layer + 1)
            if max(params.deferred_layers, params.pruning_layer) < num_layers:
                arms.append(Arm(name=f"{label}={_text(value)}", params=params))
    return arms


def _depths(num_layers: int, own: int) -> list[int]:
    """About eight layers over the whole depth, the profile's neighbours among them."""
    step = max(1, num_layers // _DEPTHS)
    around = {layer for layer in (own - 1, own, own + 1) if 0 <= layer < num_layers}
    return sorted({*range(step, num_layers, step), *around})


def _order(value: Any) -> Any:  # noqa: ANN401  values of any one parameter
    return value.value if isinstance(value, Enum) else value


def _text(value: Any) -> str:  # noqa: ANN401  values of any one parameter
    return str(_order(value))

"""Arms of a comparison: what is pruned and what decode reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.plan.profile import FULL, MeasuredProfile
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to serve."""

    name: str
    """As tables write it."""
    keep_rate: float
    """Of CLAA; 1 prunes nothing."""
    policy: str
    """Of decode steps."""


def arms_of(profile: MeasuredProfile, keep_rates: Sequence[float]) -> list[Arm]:
    """Full, CLAA at each rate, DELTA, and both at each rate; what was not measured is left out.

    Args:
        profile: what was measured.
        keep_rates: below 1; none takes the profile's own, if pruning was measured.

    Raises:
        ConfigError: a rate is none.
    """
    for rate in keep_rates:
        if not 0 < rate < FULL:
            raise ConfigError(f"keep rate {rate:g} prunes nothing or all: give one within 0 and 1")
    own = (profile.pruning.keep_rate,) if profile.keep_rates[0] < FULL else ()
    rates = tuple(keep_rates) or tuple(rate for rate in own if rate < FULL)
    found = [Arm("full", FULL, "dense")]
    found += [Arm(f"CLAA {rate:g}", rate, "dense") for rate in rates]
    if "delta" in profile.policies:
        found.append(Arm("DELTA", FULL, "delta"))
        found += [Arm(f"both {rate:g}", rate, "delta") for rate in rates]
    return found


def arm_named(profile: MeasuredProfile, name: str) -> Arm:
    """The arm `full`, `claa`, `delta` or `both`, at the profile's own keep rate.

    Raises:
        ConfigError: there is none of this name, or it was not measured.
    """
    rate = profile.pruning.keep_rate
    known = {
        "full": Arm("full", FULL, "dense"),
        "claa": Arm(f"CLAA {rate:g}", rate, "dense"),
        "delta": Arm("DELTA", FULL, "delta"),
        "both": Arm(f"both {rate:g}", rate, "delta"),
    }
    if name not in known:
        raise ConfigError(f"arm {name!r} is unknown: choose one of {', '.join(known)}")
    return known[name]

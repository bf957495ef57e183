"""Ratios that must not be below a bound, and whether they are; what several benches tell alike."""

from collections.abc import Mapping
from typing import Any


def at_least(value: float, least: float) -> dict[str, Any]:
    """A figure beside the least that it may be, JSON-ready."""
    return {"value": value, "at_least": least, "met": value >= least}


def print_bounds(bounds: Mapping[str, Mapping[str, Any]], *, indent: str = "") -> None:
    """A line for each, by its name."""
    for name, bound in bounds.items():
        verdict = "met" if bound["met"] else "MISSED"
        print(f"{indent}{name}: {bound['value']:.3f}, at least {bound['at_least']}: {verdict}")

"""The table of ranking methods; the conformance suite runs over it: registering is testing."""

from collections.abc import Callable

from prefill_service.ranking.base import Ranker
from prefill_service.ranking.claa import ClaaRanker
from prefill_service.ranking.full import FullRanker
from shared.registry.registry import Registry
from shared.types.methods import PruningParams


def ranker_registry() -> Registry[Callable[[PruningParams], Ranker]]:
    """Every ranking method by name; a factory takes `PruningParams`."""
    registry: Registry[Callable[[PruningParams], Ranker]] = Registry("ranking method")
    registry.register("claa", ClaaRanker)
    registry.register("full", FullRanker)
    return registry


def build_ranker(name: str, params: PruningParams) -> Ranker:
    """The named method with its parameters; ConfigError naming the known ones if there is none."""
    return ranker_registry().get(name)(params)

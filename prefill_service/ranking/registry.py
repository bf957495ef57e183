"""The table of ranking methods; the conformance suite runs over it: registering is testing."""

from collections.abc import Callable
from functools import cache

from prefill_service.ranking.base import PromptRanker, Ranker, SideInputs
from prefill_service.ranking.claa import ClaaRanker
from prefill_service.ranking.fastkv import FastKvRanker
from prefill_service.ranking.full import FullRanker
from prefill_service.ranking.gemfilter import GemFilterRanker
from prefill_service.ranking.oracle import OracleRanker
from prefill_service.ranking.random import RandomRanker
from prefill_service.ranking.recency import RecencyRanker
from prefill_service.ranking.self_information import SelfInformationRanker
from prefill_service.ranking.snapkv import SnapKvRanker
from prefill_service.ranking.speculative import SpeculativeRanker
from shared.errors import ConfigError
from shared.registry.registry import Registry
from shared.types.methods import PruningParams

RankerFactory = Callable[[PruningParams, SideInputs], Ranker | PromptRanker]
"""Makes a method with its parameters and what it needs beside the prompt."""

NO_SIDE_INPUTS = SideInputs()
"""All that a worker has."""


@cache
def ranker_registry() -> Registry[RankerFactory]:
    """Every ranking method by name; one table, as several are looked up for each prompt."""
    registry: Registry[RankerFactory] = Registry("ranking method")
    registry.register("claa", lambda params, _: ClaaRanker(params))
    registry.register("fastkv", lambda params, _: FastKvRanker(params))
    registry.register("full", lambda params, _: FullRanker(params))
    registry.register("gemfilter", lambda params, _: GemFilterRanker(params))
    registry.register(
        "gemfilter-original", lambda params, _: GemFilterRanker(params, compact=False)
    )
    registry.register("oracle", lambda params, side: OracleRanker(params, side.oracle_L))
    registry.register("random", lambda params, _: RandomRanker(params))
    registry.register("recency", lambda params, _: RecencyRanker(params))
    registry.register("self-information", lambda params, _: SelfInformationRanker(params))
    registry.register("snapkv", lambda params, _: SnapKvRanker(params))
    registry.register("speculative", lambda params, _: SpeculativeRanker(params))
    registry.register(
        "speculative-forced",
        lambda params, _: SpeculativeRanker(params, name="speculative-forced", forced=True),
    )
    registry.register(
        "speculative-tokens",
        lambda params, _: SpeculativeRanker(
            params, name="speculative-tokens", forced=True, chunk_tokens=1
        ),
    )
    return registry


def build_ranker(
    name: str, params: PruningParams, side: SideInputs = NO_SIDE_INPUTS
) -> Ranker | PromptRanker:
    """The named method with its parameters.

    Raises:
        ConfigError: no such method (the known ones are named), or a side input is missing.
    """
    return ranker_registry().get(name)(params, side)


def check_mass(ranker: Ranker | PromptRanker, params: PruningParams) -> None:
    """Refuses a mass for a method that has no scores of layers to take it from.

    Raises:
        ConfigError: it has none.
    """
    has_scores = isinstance(ranker, Ranker) and ranker.aggregated_layers(params.pruning_layer)
    if params.mass is not None and not has_scores:
        raise ConfigError(
            f"mass cannot set the kept count of the ranking method {ranker.name!r}: it scores no "
            "layers before the sequence is pruned; use keep_rate, or another method"
        )

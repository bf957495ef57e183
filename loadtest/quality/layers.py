"""Agreement of single layers and of aggregated layers with the oracle, on one prompt."""

from collections.abc import Mapping
from types import MappingProxyType

from loadtest.quality.correlation import layer_correlation
from loadtest.quality.oracle import OracleSwitches, ask_prompt, oracle_scores
from loadtest.quality.runner import FullRead, Setup
from loadtest.quality.store import CorrelationCurve

ORACLES: Mapping[str, OracleSwitches] = MappingProxyType(
    {
        "softmax, pool 7": OracleSwitches(),
        "raw logits, pool 7": OracleSwitches(softmax=False),
    }
)
"""Rank correlation depends on these switches, so both ways are shown."""
SINGLE = "layer"
"""Series of single layers."""


def correlation_curves(setup: Setup, full: FullRead, *, run: int) -> list[CorrelationCurve]:
    """One curve over layers for each oracle and each way to use the layers' scores."""
    sample, base = full.sample, setup.base
    asked = ask_prompt(
        setup.model,
        full.prompt,
        token_ids=sample.prompt_ids,
        answer_ids=full.answer_ids,
        window=base.observation_window,
    )
    curves = []
    for oracle, switches in ORACLES.items():
        found = layer_correlation(asked, oracle_scores(asked, switches), params=base)
        series = {
            SINGLE: found.single,
            **{
                f"{form.value}, n={found.aggregation_window}": rhos
                for form, rhos in found.aggregated.items()
            },
        }
        curves += [
            CorrelationCurve(
                run=run,
                task=sample.task,
                length=sample.length,
                seed=sample.seed,
                oracle=oracle,
                series=name,
                rho=list(rhos),
            )
            for name, rhos in series.items()
        ]
    return curves

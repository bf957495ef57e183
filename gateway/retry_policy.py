"""When a failed attempt may be followed by another one."""

from dataclasses import dataclass

from gateway.config import GatewayConfig
from gateway.replay import ReplayOutcome, Replays
from gateway.retry_budget import RetryBudget
from shared.telemetry.metrics import GatewayMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The bounds of all requests."""

    per_request: int
    """Attempts after the first one, before anything but first tokens was sent."""
    budget: RetryBudget
    """Of all requests together."""
    replays: Replays
    """What becomes of answers that lose their decode worker after that."""

    @classmethod
    def from_config(cls, config: GatewayConfig, *, metrics: GatewayMetrics) -> "RetryPolicy":
        """As the settings say; what it forbids and what came of replays is counted in `metrics`."""
        for outcome in ReplayOutcome:  # an alert on a counter needs it before its first event
            metrics.replays.labels(outcome=outcome.value)
        budget = RetryBudget(
            config.retry_budget, always=config.retry_floor, on_denied=metrics.retries_denied.inc
        )
        replays = Replays(
            allowed=config.replay_answers,
            budget=budget,
            on_outcome=lambda outcome: metrics.replays.labels(outcome=outcome).inc(),
        )
        return cls(per_request=config.max_retries, budget=budget, replays=replays)

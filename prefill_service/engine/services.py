"""What the engine works with; `app` builds it once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from prefill_service.engine.batcher import PackLimits
from prefill_service.engine.compute import Computed, ComputeThread
from prefill_service.engine.courier import DeliveryPolicy
from prefill_service.engine.held import HeldStore
from prefill_service.engine.job import Failed, PrefillJob, PromptRequest, Sealed
from prefill_service.engine.plan import PromptPlan, plan_prompt, served_params
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.queue import SpeedMeter, TokenQueue
from prefill_service.engine.sender import Links
from shared.errors import ConfigError
from shared.kv.geometry import KvGeometry
from shared.model.config import ModelConfig
from shared.types.methods import PruningParams
from shared.types.model_identity import ModelIdentity

Planner = Callable[[PromptRequest], PromptPlan]
"""Decides about a prompt; raises InvalidRequestError when it cannot be served."""


def profile_planner(config: ModelConfig, *, geometry: KvGeometry, params: PruningParams) -> Planner:
    """Plans by a model's profile and the request's overrides.

    Raises:
        ConfigError: the profile's ranking method cannot be served, or keeps fewer layers whole
            than the profile says, by which decode workers share out their memory.
    """
    settled = served_params(params, num_layers=config.num_layers)
    if settled.deferred_layers != params.deferred_layers:
        raise ConfigError(
            f"the ranking method {params.ranker!r} has {settled.deferred_layers} layers that keep "
            f"their whole cache, the profile says {params.deferred_layers}: decode workers would "
            f"lay out their memory wrongly; set deferred_layers to {settled.deferred_layers}"
        )

    def plan(request: PromptRequest) -> PromptPlan:
        return plan_prompt(
            config=config,
            geometry=geometry,
            params=params,
            options=request.options,
            prompt_tokens=len(request.token_ids),
            earlier_tokens=request.earlier_tokens,
        )

    return plan


class Slabs(Protocol):
    """Makes the slabs of prompts."""

    async def make(self, plan: PromptPlan) -> PromptSlab:
        """A slab for a prompt whose bytes were admitted."""
        ...

    @property
    def quarantined_bytes(self) -> int:
        """Bytes of ended prompts that a transfer may still read."""
        ...

    @property
    def quarantines(self) -> int:
        """Slabs that came into quarantine, since the start."""
        ...


class Recorder(Protocol):
    """Is told what happened, for metrics and logs; on the loop."""

    def passed(self, prompts: int, tokens: int) -> None:
        """Prompts went through the model in one pass, with these tokens in all."""
        ...

    def computed(self, computed: Computed) -> None:
        """A prompt went through the model."""
        ...

    def ended(self, job: PrefillJob, outcome: Sealed | Failed) -> None:
        """A prompt or a resend ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The engine's parts."""

    compute: ComputeThread
    """The engine thread."""
    planner: Planner
    """Decides what to prune."""
    model: ModelIdentity
    """Whose KV is sent."""
    slabs: Slabs
    """Where KV waits for its delivery."""
    links: Links
    """Ways to decode workers."""
    policy: DeliveryPolicy
    """How persistently they are tried."""
    queue: TokenQueue
    """Waiting prompts."""
    pack: PackLimits
    """How many of them are computed together."""
    held: HeldStore
    """Bounds of that memory, and leases."""
    speed: SpeedMeter
    """Measured speed."""
    recorder: Recorder
    """Metrics and logs."""

"""What will be done with one prompt: is it pruned, to how many tokens, and where does its KV go."""

from dataclasses import dataclass, replace

from prefill_service.ranking.base import Ranker
from prefill_service.ranking.registry import build_ranker
from shared.errors import ConfigError, ContextLengthError, InvalidRequestError
from shared.kv.geometry import KvGeometry
from shared.kv.slab_layout import SlabLayout
from shared.model.config import ModelConfig
from shared.types.kv_manifest import PruningSummary
from shared.types.methods import PruningParams
from shared.types.options import RequestOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """All decisions about a prompt, made before its first layer runs."""

    prompt_tokens: int
    """L."""
    params: PruningParams
    """The profile's parameters with the request's overrides."""
    summary: PruningSummary
    """What will happen and why, as the manifest and the answer tell it."""
    slab: SlabLayout
    """Where each layer's KV and positions lie in the landing slab."""

    @property
    def ranker(self) -> Ranker:
        """The method that chooses this prompt's tokens: `full` when nothing is pruned."""
        ranker = build_ranker(self.params.ranker if self.summary.pruned else "full", self.params)
        assert isinstance(ranker, Ranker), "only methods that look at layers are planned"
        return ranker

    @property
    def window_tokens(self) -> int:
        """W, or the whole prompt when that is shorter."""
        return min(self.params.observation_window, self.prompt_tokens)

    @property
    def held_layers(self) -> range:
        """Layers that ran on the whole prompt and ship a selection of it; empty when not pruned."""
        if not self.summary.pruned:
            return range(0)
        return range(self.params.deferred_layers, self.params.pruning_layer + 1)


def plan_prompt(
    *,
    config: ModelConfig,
    geometry: KvGeometry,
    params: PruningParams,
    options: RequestOptions,
    prompt_tokens: int,
) -> PromptPlan:
    """Decides about a prompt of `prompt_tokens` tokens.

    Raises:
        InvalidRequestError: the prompt is empty or an override is out of range.
        ContextLengthError: the prompt is longer than the model's context.
        ConfigError: the profile prunes at a layer that the model does not have.
    """
    _check_prompt(config, prompt_tokens=prompt_tokens)
    if params.pruning_layer >= config.num_layers:
        raise ConfigError(
            f"pruning_layer {params.pruning_layer} does not exist in a model of "
            f"{config.num_layers} layers: the profile belongs to another model; "
            f"choose a layer of 0..{config.num_layers - 1} or the model's own profile"
        )
    params = _overridden(params, options)
    kept_tokens = params.kept_count(prompt_tokens)
    reason = _reason_to_keep_all(params, options, prompt_tokens=prompt_tokens)
    pruned = reason is None
    kept_tokens = kept_tokens if pruned else prompt_tokens
    slab = SlabLayout.plan(
        geometry,
        prompt_tokens=prompt_tokens,
        kept_tokens=kept_tokens,
        whole_layers=min(params.deferred_layers, params.pruning_layer + 1),
        pruning_layer=params.pruning_layer,
        kv_select=params.kv_select,
        pruned=pruned,
    )
    summary = PruningSummary(
        pruned=pruned,
        reason=_reason_to_prune(options) if reason is None else reason,
        pruning_layer=params.pruning_layer,
        aggregation_window=params.aggregation_window,
        deferred_layers=params.deferred_layers,
        observation_window=params.observation_window,
        aggregation=params.aggregation,
        kv_select=params.kv_select,
        keep_rate=params.keep_rate,
        kept_tokens=kept_tokens,
    )
    return PromptPlan(prompt_tokens=prompt_tokens, params=params, summary=summary, slab=slab)


def _check_prompt(config: ModelConfig, *, prompt_tokens: int) -> None:
    if prompt_tokens < 1:
        raise InvalidRequestError(
            "the prompt has no tokens: the text was empty or templated to nothing; send some text",
            param="prompt",
        )
    if prompt_tokens > config.max_position:
        raise ContextLengthError(
            f"the prompt has {prompt_tokens} tokens and the model's context is "
            f"{config.max_position}: shorten the prompt or choose a model with a longer context",
            param="prompt",
        )


def _overridden(params: PruningParams, options: RequestOptions) -> PruningParams:
    if options.keep_rate is not None:
        if not 0.0 < options.keep_rate <= 1.0:
            raise InvalidRequestError(
                f"keep_rate {options.keep_rate} is out of range: it is the share of prompt tokens "
                "to keep; give a number above 0 and up to 1",
                param="tandem.keep_rate",
            )
        params = replace(params, keep_rate=options.keep_rate)
    if options.min_keep is not None:
        if options.min_keep < 0:
            raise InvalidRequestError(
                f"min_keep {options.min_keep} is negative: it is a count of tokens; give 0 or more",
                param="tandem.min_keep",
            )
        params = replace(params, min_keep=options.min_keep)
    return params


def _reason_to_keep_all(
    params: PruningParams, options: RequestOptions, *, prompt_tokens: int
) -> str | None:
    if not options.mode.prunes:
        return "mode_full"
    if params.keep_rate >= 1.0:
        return "keep_all"
    if prompt_tokens < params.bypass_below or params.kept_count(prompt_tokens) >= prompt_tokens:
        return "short_prompt"
    return None


def _reason_to_prune(options: RequestOptions) -> str:
    overridden = options.keep_rate is not None or options.min_keep is not None
    return "request" if overridden else "profile"

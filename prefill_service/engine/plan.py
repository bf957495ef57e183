"""What will be done with one prompt: is it pruned, to how many tokens, and where does its KV go."""

from dataclasses import dataclass, replace
from typing import cast

from prefill_service.ranking.base import Ranker, ranks_before
from prefill_service.ranking.registry import build_ranker, check_mass
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
    geometry: KvGeometry
    """Shape of the cache."""
    protected: tuple[int, ...] = ()
    """Positions before the window that are kept whatever their scores, ascending."""
    earlier_tokens: int = 0
    """How many of the L, at their end, are the answer's own, in a replay; all are kept."""

    @property
    def ranker(self) -> Ranker:
        """The method that chooses this prompt's tokens: `full` when nothing is pruned."""
        ranker = build_ranker(self.params.ranker if self.summary.pruned else "full", self.params)
        assert not ranks_before(ranker), "only methods that look at layers are planned"
        return cast("Ranker", ranker)

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

    @property
    def trimmed_layers(self) -> range:
        """Layers that ran on the kept tokens and ship a selection of those; empty as a rule."""
        if self.summary.kv_tokens is None:
            return range(0)
        return range(self.params.pruning_layer + 1, self.geometry.num_layers)

    @property
    def final(self) -> bool:
        """Whether it says already what will be kept, which `mass` leaves to the scores."""
        return self.summary.mass is None

    def settled(self, kept_tokens: int) -> "PromptPlan":
        """The plan with the count that `mass` came to, which is at most the planned one."""
        assert self.summary.mass is not None, "every other count is known from the start"
        assert kept_tokens <= self.summary.kept_tokens, "room was asked for the bound"
        summary = replace(self.summary, kept_tokens=kept_tokens)
        slab = _laid_out(summary, geometry=self.geometry, prompt_tokens=self.prompt_tokens)
        return replace(self, summary=summary, slab=slab)


def plan_prompt(
    *,
    config: ModelConfig,
    geometry: KvGeometry,
    params: PruningParams,
    options: RequestOptions,
    prompt_tokens: int,
    earlier_tokens: int = 0,
) -> PromptPlan:
    """Decides about a prompt of `prompt_tokens` tokens.

    Of these the last `earlier_tokens` are the answer's own, in a replay: all of them are kept, as
    they were where they were generated, and the prompt is pruned by its own length.

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
    params = served_params(_overridden(params, options), num_layers=config.num_layers)
    own_tokens = prompt_tokens - earlier_tokens
    kv_tokens = params.kv_count(own_tokens) + earlier_tokens
    reason = _reason_to_keep_all(params, options, prompt_tokens=own_tokens)
    pruned = reason is None
    protected = _protected(
        params, options, own_tokens=own_tokens, earlier_tokens=earlier_tokens, pruned=pruned
    )
    kept_tokens = params.kept_count(own_tokens) + earlier_tokens if pruned else prompt_tokens
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
        protected_tokens=len(protected),
        mass=params.mass if pruned else None,
        ranker=params.ranker,
        kv_tokens=kv_tokens if pruned and kv_tokens < kept_tokens else None,
    )
    return PromptPlan(
        prompt_tokens=prompt_tokens,
        params=params,
        summary=summary,
        slab=_laid_out(summary, geometry=geometry, prompt_tokens=prompt_tokens),
        geometry=geometry,
        protected=protected,
        earlier_tokens=earlier_tokens,
    )


def needs_evaluation(params: PruningParams) -> bool:
    """Whether no worker can serve these parameters, and only `engine/evaluate.py` runs them."""
    before_main_pass = ranks_before(build_ranker(params.ranker, params))
    return before_main_pass or (params.kv_rate is not None and params.kv_rate > params.keep_rate)


def served_params(params: PruningParams, *, num_layers: int) -> PruningParams:
    """The parameters as their method means them.

    Raises:
        ConfigError: an unknown method, or one that only evaluations can run.
    """
    ranker = build_ranker(params.ranker, params)
    if ranks_before(ranker):
        raise ConfigError(
            f"the ranking method {params.ranker!r} chooses tokens before the main pass, which only "
            "evaluations and inspect run; choose a method that looks at layers, such as 'claa'"
        )
    if params.kv_rate is not None and params.kv_rate > params.keep_rate:
        raise ConfigError(
            f"kv_rate {params.kv_rate} is above keep_rate {params.keep_rate}: layers up to the "
            "pruning layer would hold more than later ones have, a third length that decode "
            "workers have no pages for; lower it, or evaluate it only"
        )
    return ranker.settled(num_layers)


def _laid_out(summary: PruningSummary, *, geometry: KvGeometry, prompt_tokens: int) -> SlabLayout:
    return SlabLayout.plan(
        geometry,
        prompt_tokens=prompt_tokens,
        kept_tokens=summary.slots,
        whole_layers=min(summary.deferred_layers, summary.pruning_layer + 1),
        pruning_layer=summary.last_choosing_layer(geometry.num_layers),
        kv_select=summary.kv_select,
        pruned=summary.pruned,
    )


def _check_prompt(config: ModelConfig, *, prompt_tokens: int) -> None:
    if prompt_tokens < 1:
        raise InvalidRequestError(
            "the prompt has no tokens: the text was empty or templated to nothing; send some text",
            param="prompt",
        )
    if prompt_tokens > config.max_position:
        raise ContextLengthError(
            f"This model's maximum context length is {config.max_position} tokens, but the prompt "
            f"has {prompt_tokens}; shorten the prompt or choose a model with a longer context",
            param="prompt",
        )


def _overridden(params: PruningParams, options: RequestOptions) -> PruningParams:
    options.check_pruning()
    given = {
        name: value
        for name in ("keep_rate", "min_keep", "observation_window", "mass", "min_rate", "max_rate")
        if (value := getattr(options, name)) is not None
    }
    if options.keep_rate is not None:
        given["mass"] = None
        if params.kv_rate is not None:
            given["kv_rate"] = min(params.kv_rate, options.keep_rate)
    if options.mass is not None:
        given["kv_rate"] = None
    try:
        changed = replace(params, **given)
        if changed.mass is not None:
            check_mass(build_ranker(changed.ranker, changed), changed)
    except ConfigError as error:
        if not given:
            raise
        raise InvalidRequestError(
            f"the request's overrides do not fit the model's profile ({error.message}); send mass "
            "with both of its bounds, or keep_rate",
            param="tandem.mass",
        ) from error
    bounded = options.min_rate is not None or options.max_rate is not None
    if bounded and changed.mass is None:
        raise InvalidRequestError(
            "min_rate and max_rate bound what mass comes to, but there is no mass here; "
            "send mass as well, or keep_rate instead",
            param="tandem.mass",
        )
    return changed


def _protected(
    params: PruningParams,
    options: RequestOptions,
    *,
    own_tokens: int,
    earlier_tokens: int,
    pruned: bool,
) -> tuple[int, ...]:
    """Positions before the window that are protected; none where nothing is dropped.

    They are those that the request names, and the answer's own.
    """
    candidates = max(own_tokens + earlier_tokens - params.observation_window, 0)
    positions = set(range(own_tokens, candidates))
    for tokens in options.protect:
        if tokens.end > own_tokens:
            raise InvalidRequestError(
                f"the protected range [{tokens.start}, {tokens.end}) ends after the prompt, which "
                f"has {own_tokens} tokens; count with this model's tokenizer and template",
                param="tandem.protect",
            )
        positions.update(range(tokens.start, min(tokens.end, candidates)))
    if not positions or not pruned:
        return ()
    _check_room(params, positions, own_tokens=own_tokens, earlier_tokens=earlier_tokens)
    return tuple(sorted(positions))


def _check_room(
    params: PruningParams, protected: set[int], *, own_tokens: int, earlier_tokens: int
) -> None:
    kept_tokens = min(params.kept_count(own_tokens), params.kv_count(own_tokens)) + earlier_tokens
    places = kept_tokens - params.observation_window
    wanted = len(protected | {0} if params.protect_first else protected)
    if wanted > places:
        raise InvalidRequestError(
            f"{wanted} tokens are protected, but of {own_tokens} prompt tokens {kept_tokens} "
            f"are kept, the last {params.observation_window} among them: {places} places are "
            "left; protect fewer tokens or keep more",
            param="tandem.protect",
        )


def _reason_to_keep_all(
    params: PruningParams, options: RequestOptions, *, prompt_tokens: int
) -> str | None:
    if not options.mode.prunes:
        return "mode_full"
    if params.keep_rate >= 1.0 and params.kv_rate is None and params.mass is None:
        return "keep_all"
    fewest = min(params.kept_count(prompt_tokens), params.kv_count(prompt_tokens))
    if prompt_tokens < params.bypass_below or fewest >= prompt_tokens:
        return "short_prompt"
    return None


def _reason_to_prune(options: RequestOptions) -> str:
    return "request" if options.changes_pruning else "profile"

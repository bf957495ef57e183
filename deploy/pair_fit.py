"""What `tandem bench pair` runs unless told otherwise, and whether prompts fit the context."""

import dataclasses
from collections.abc import Callable

from deploy.bench_pair import PairRequest, model_config
from deploy.settings import load_role
from loadtest.pair.plan import CPU_PLAN, GPU_PLAN, PROMPTS, PairPlan
from loadtest.pair.surroundings import pair_facts
from shared.errors import ConfigError

_ROUND = 1_000
"""Lengths that are chosen for a short context are multiples of this, where one fits."""


def usual_plan(request: PairRequest) -> PairPlan:
    """What is run unless told otherwise: a CPU is asked for less, so that it ends in minutes.

    Args:
        request: of a pair that runs, whose workers tell their devices, or that is started.

    Raises:
        UnavailableError: the gateway of the pair cannot be reached.
    """
    gpus = bool(request.prefill_gpus or request.decode_gpus)
    if request.url:
        workers = pair_facts(request.url)["workers"]
        gpus = any(str(worker["device"]).startswith("cuda") for worker in workers)
    return GPU_PLAN if gpus else CPU_PLAN


def fitted(
    request: PairRequest, *, prompts_given: bool, tell: Callable[[str], None]
) -> PairRequest:
    """A request whose prompts and answers fit the context.

    Args:
        request: what was asked for.
        prompts_given: its lengths were; else those of the plan's that fit are taken, or one that
            does.
        tell: is told of lengths that were not the plan's.

    Raises:
        ConfigError: lengths that were given do not fit, or answers leave no room for a prompt.
        TandemError: there is no such model, or no such gateway.
    """
    if request.parity:
        model_config(request.parity)
    if not request.model:
        return request
    plan, positions = request.plan, _positions(request)
    if prompts_given:
        _check(plan, positions=positions)
        return request
    prompts = fitting_prompts(positions, new_tokens=plan.new_tokens, usual=plan.prompts)
    if prompts != plan.prompts:
        lengths = ", ".join(f"{tokens:,}" for tokens in prompts)
        tell(
            f"prompts of {lengths} tokens, since the context has {positions:,} and an answer takes "
            f"{plan.new_tokens}; --prompts names others"
        )
    return dataclasses.replace(request, plan=dataclasses.replace(plan, prompts=prompts))


def fitting_prompts(
    positions: int, *, new_tokens: int, usual: tuple[int, ...] = PROMPTS
) -> tuple[int, ...]:
    """The usual lengths that fit a context beside their answers, or the one that is nearest.

    Args:
        positions: tokens of the context.
        new_tokens: tokens of an answer.
        usual: those lengths.

    Raises:
        ConfigError: answers leave no room for a prompt.
    """
    room = positions - new_tokens
    if room < 1:
        raise ConfigError(
            f"answers of {new_tokens:,} tokens leave no room for a prompt in a context of "
            f"{positions:,}: give a smaller --new-tokens",
            param="new_tokens",
        )
    fit = tuple(tokens for tokens in usual if tokens <= room)
    return fit or (room // _ROUND * _ROUND or room,)


def _check(plan: PairPlan, *, positions: int) -> None:
    if plan.longest > positions:
        raise ConfigError(
            f"a prompt of {max(plan.prompts):,} tokens and {plan.new_tokens:,} new ones do not fit "
            f"the context of {positions:,}: give smaller --prompts or --new-tokens, or another "
            "--model",
            param="prompts",
        )


def _positions(request: PairRequest) -> int:
    """Tokens of the context: of the pair that runs, else of the model and the settings."""
    if request.url:
        return int(pair_facts(request.url)["max_model_len"])
    longest = model_config(request.model).max_position
    if request.settings_file is None:
        return longest
    limits = (
        load_role(role, file=request.settings_file).value.max_model_len
        for role in ("prefill", "decode")
    )
    return min(longest, *(limit or longest for limit in limits))

"""Prompts computed together against each alone, before the time of either counts.

Small random models. Both are compared with float32, given the tokens that each kept: a pass of
several prompts may be off by rounding, no more than twice what the same prompt is off alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from loadtest.micro.models import in_float32, random_on_device
from loadtest.micro.pass_parity import LIMITS, SLACK, PassCase, errors_of
from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.inspect import CapturedPrefill
from prefill_service.engine.plan import plan_prompt
from prefill_service.engine.prompt_pass import PackedPrompt
from prefill_service.engine.runner import PrefillRunner
from shared.errors import InternalError
from shared.model.attention import PrefillAttention
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams
from shared.types.options import RequestOptions

PackedIds = tuple[list[int], PruningParams]
"""A prompt and how it is pruned."""


def capture_pack(
    runner: PrefillRunner, model: Transformer, prompts: Sequence[PackedIds]
) -> list[CapturedPrefill]:
    """Prefills prompts in one pass and keeps their KV in memory; short ones are pruned, too."""
    plans = [
        plan_prompt(
            config=model.config,
            geometry=model.geometry(),
            params=replace(params, bypass_below=0),
            options=RequestOptions(),
            prompt_tokens=len(ids),
        )
        for ids, params in prompts
    ]
    kept = [CapturedKv(plan) for plan in plans]
    outcomes = runner.run_pack(
        [
            PackedPrompt(token_ids=ids, plan=plan, observer=kv, stop=lambda: False)
            for (ids, _), plan, kv in zip(prompts, plans, kept, strict=True)
        ]
    )
    found = []
    for outcome, kv in zip(outcomes, kept, strict=True):
        if isinstance(outcome, Exception):
            raise outcome
        found.append(CapturedPrefill(plan=outcome.plan, output=outcome, kv=kv))
    return found


def check_packs(
    case: PassCase, *, attention: PrefillAttention, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """Largest errors of prompts in a pass and of the same prompts alone, both from float32.

    Pruned and full prompts in turn, from one token to the case's length.

    Raises:
        InternalError: a prompt is further off in company than it may be.
    """
    model = random_on_device(case.config, device=device, dtype=dtype)
    exact = in_float32(model)
    runner = PrefillRunner(model, attention=attention, chunk_tokens=case.chunk_tokens)
    prompts = _prompts(case)
    together = capture_pack(runner, model, prompts)
    alone = [capture_pack(runner, model, [prompt])[0] for prompt in prompts]
    found: dict[str, Any] = {"packed": {}, "alone": {}, "same_token": 0, "prompts": len(prompts)}
    for (ids, _), packed, single in zip(prompts, together, alone, strict=True):
        errors, allowed = errors_of(exact, ids, packed), errors_of(exact, ids, single)
        for name, error in errors.items():
            limit = max(LIMITS[dtype], SLACK * allowed[name])
            if not error <= limit:
                raise InternalError(
                    f"{case.label}: {name} of a prompt of {len(ids)} tokens {error:.3g} off "
                    f"float32 among others, {limit:.3g} is allowed (alone: {allowed[name]:.3g}): "
                    "packing is wrong on this device, so its speed means nothing; report this"
                )
            found["packed"][name] = max(error, found["packed"].get(name, 0.0))
            found["alone"][name] = max(allowed[name], found["alone"].get(name, 0.0))
        tokens = [int(ran.output.logits_V.argmax()) for ran in (packed, single)]
        found["same_token"] += tokens[0] == tokens[1]
    return found


def _prompts(case: PassCase) -> list[PackedIds]:
    full = replace(case.params, keep_rate=1.0)
    lengths = (case.tokens, 37, 1, case.tokens // 3, 130, 16)
    made: list[PackedIds] = []
    for index, tokens in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * index + tokens)
        ids = torch.randint(3, 512, (tokens,), generator=generator).tolist()
        made.append((ids, full if index % 3 == 1 else case.params))
    return made

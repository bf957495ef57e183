"""Prompts computed together and each alone, and what must be equal between the two."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.prompt_pass import PackedPrompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from shared.model.plain_attention import plain_attention
from shared.model.sampler import best_tokens
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams
from shared.types.options import RequestOptions


@dataclass
class PackMember:
    """One prompt of a pack."""

    tokens: int
    params: PruningParams
    stops_at: int = 0
    """The look at which it is stopped, counted from 1; 0: never."""
    fails_at: int = -1
    """The layer whose KV its observer cannot take."""
    looks: int = field(default=0, init=False)

    def ids(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.tokens)
        return torch.randint(3, 512, (self.tokens,), generator=generator).tolist()

    def plan(self, model: Transformer) -> PromptPlan:
        return plan_prompt(
            config=model.config,
            geometry=model.geometry(),
            params=self.params,
            options=RequestOptions(),
            prompt_tokens=self.tokens,
        )

    def stop(self) -> bool:
        self.looks += 1
        return 0 < self.stops_at <= self.looks

    @property
    def ends(self) -> bool:
        """Whether it does not come to its end."""
        return self.stops_at > 0 or self.fails_at >= 0


class FailingKv(CapturedKv):
    """Fails at the KV of one layer, and counts what it is told after it failed."""

    def __init__(self, plan: PromptPlan, *, at: int) -> None:
        super().__init__(plan)
        self._at = at
        self._failed = False
        self.told_after = 0

    def kv_final(self, *, layer: int, **rest: Any) -> None:
        self.told_after += self._failed
        if layer == self._at:
            self._failed = True
            raise MemoryError("this slab is full")
        super().kv_final(layer=layer, **rest)

    def positions_final(self, **what: Any) -> None:
        self.told_after += self._failed
        super().positions_final(**what)

    def progress(self, *, done_tokens: int) -> None:
        self.told_after += self._failed
        super().progress(done_tokens=done_tokens)


@dataclass
class Alone:
    """What a prompt came to without company."""

    output: PrefillOutput
    kv: CapturedKv


def run_alone(runner: PrefillRunner, model: Transformer, member: PackMember) -> Alone:
    plan = member.plan(model)
    kv = CapturedKv(plan)
    output = runner.run(token_ids=member.ids(), plan=plan, observer=kv, stop=lambda: False)
    return Alone(output, kv)


def check_pack(runner: PrefillRunner, model: Transformer, members: Sequence[PackMember]) -> None:
    """Runs all in one pass; each that comes to its end must have what it has alone."""
    plans = [member.plan(model) for member in members]
    kvs = [FailingKv(plan, at=member.fails_at) for plan, member in zip(plans, members, strict=True)]
    told: dict[int, Exception] = {}
    outcomes = runner.run_pack(
        [
            PackedPrompt(token_ids=member.ids(), plan=plan, observer=kv, stop=member.stop)
            for member, plan, kv in zip(members, plans, kvs, strict=True)
        ],
        ended=told.__setitem__,
    )
    for index, (member, outcome, kv) in enumerate(zip(members, outcomes, kvs, strict=True)):
        if isinstance(outcome, Exception):
            assert member.ends, f"it should not have ended: {outcome!r}"
            assert told.pop(index) is outcome
            assert kv.told_after == 0, "a prompt that failed hears nothing any more"
        else:
            assert_equal_runs(outcome, kv, run_alone(runner, model, member))
    assert not told


def assert_equal_runs(output: PrefillOutput, kv: CapturedKv, alone: Alone) -> None:
    wanted = alone.output
    assert output.plan == wanted.plan
    assert output.kept_N.tolist() == wanted.kept_N.tolist()
    _close(output.logits_V, wanted.logits_V)
    assert int(output.logits_V.argmax()) == int(wanted.logits_V.argmax())
    assert output.best_2.tolist() == best_tokens(output.logits_V[None])[:, 0].tolist()
    assert output.best_2.device.type == "cpu"
    assert (output.scores_C is None) == (wanted.scores_C is None)
    for layer in range(output.plan.geometry.num_layers):
        assert torch.equal(kv.layer_positions(layer), alone.kv.layer_positions(layer))
        for got, other in zip(kv.layer(layer), alone.kv.layer(layer), strict=True):
            assert got.is_contiguous()
            _close(got, other)


def _close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


class PlainPackKernel:
    """A kernel for several prompts, for any device and type."""

    name = "plain_pack"

    def attend(
        self, *tensors: Tensor, lengths: tuple[int, ...], want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        prompts = zip(*(torch.split(x, list(lengths)) for x in tensors), strict=True)
        seen = [plain_attention(*prompt) for prompt in prompts]
        out_THD = torch.cat([out for out, _ in seen]).to(tensors[0].dtype)
        return out_THD, torch.cat([lse for _, lse in seen]) if want_lse else None

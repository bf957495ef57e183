"""What the runner tells its observer, and how it is stopped and shared."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from prefill_service.engine.capture import CapturedKv
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from shared.errors import CancelledError, ConfigError, InvalidRequestError
from shared.model.attention import TorchAttention
from shared.model.random import random_model
from shared.model.transformer import Transformer
from shared.types.kv_manifest import PositionKind, SegmentKind
from shared.types.methods import Aggregation, KvSelect, PruningParams
from shared.types.options import RequestOptions

PARAMS = PruningParams(
    pruning_layer=3,
    deferred_layers=2,
    aggregation_window=2,
    keep_rate=0.25,
    aggregation=Aggregation.SUM_MAX,
)


def prompt(num_tokens: int, *, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + num_tokens)
    return torch.randint(3, 512, (num_tokens,), generator=generator).tolist()


def plan_for(model: Transformer, tokens: int, params: PruningParams = PARAMS) -> PromptPlan:
    return plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=params,
        options=RequestOptions(),
        prompt_tokens=tokens,
    )


def runner_of(model: Transformer, *, chunk: int = 32) -> PrefillRunner:
    return PrefillRunner(model, attention=TorchAttention(), chunk_tokens=chunk)


@dataclass
class Recorder:
    """Everything that was told, in order."""

    events: list[tuple[str, int, int]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    copies: list[Tensor] = field(default_factory=list)
    progress_seen: list[int] = field(default_factory=list)

    def keep(self, *tensors: Tensor) -> None:
        self.tensors.extend(tensors)
        self.copies.extend(t.clone() for t in tensors)

    def settled(self, plan: PromptPlan) -> None:
        raise AssertionError("these plans are final from the start")

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        assert keys_NGD.shape == values_NGD.shape
        assert keys_NGD.is_contiguous()
        assert values_NGD.is_contiguous()
        self.events.append(("kv", layer, first_slot))
        self.keep(keys_NGD, values_NGD)

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        assert positions_RN.dtype is torch.int32
        assert positions_RN.is_contiguous()
        self.events.append(("positions", layout, positions_RN.shape[0]))
        self.keep(positions_RN)

    def progress(self, *, done_tokens: int) -> None:
        self.events.append(("progress", done_tokens, 0))
        self.progress_seen.append(done_tokens)


def run(
    model: Transformer, tokens: int, params: PruningParams, *, chunk: int = 32
) -> tuple[Recorder, PromptPlan, PrefillOutput]:
    recorder, plan = Recorder(), plan_for(model, tokens, params)
    output = runner_of(model, chunk=chunk).run(
        token_ids=prompt(tokens), plan=plan, observer=recorder, stop=lambda: False
    )
    return recorder, plan, output


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
@pytest.mark.parametrize("lp", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("keep_rate", [0.25, 1.0])
def test_every_slot_once_in_slab_order(
    tiny_model: Transformer, kv_select: KvSelect, lp: int, keep_rate: float
) -> None:
    params = replace(PARAMS, kv_select=kv_select, pruning_layer=lp, keep_rate=keep_rate)
    recorder, plan, _ = run(tiny_model, 100, params)
    told = [(kind, index) for kind, index, _ in recorder.events if kind != "progress"]
    in_order = list(dict.fromkeys(told))
    kinds = {SegmentKind.KV: "kv", SegmentKind.POSITIONS: "positions"}
    assert in_order == [(kinds[s.kind], s.index) for s in plan.slab.segments]
    captured = CapturedKv(plan)
    runner_of(tiny_model).run(
        token_ids=prompt(100), plan=plan, observer=captured, stop=lambda: False
    )
    for layer in range(6):
        assert captured.layer(layer)[0].shape == (plan.slab.slots_of(layer), 2, 16)
    assert recorder.progress_seen == sorted(recorder.progress_seen)
    assert recorder.progress_seen[-1] == 100


def test_layers_leave_as_early_as_they_can(tiny_model: Transformer) -> None:
    def events(kv_select: KvSelect) -> list[tuple[str, int]]:
        recorder, _, _ = run(tiny_model, 64, replace(PARAMS, kv_select=kv_select))
        return [(kind, index) for kind, index, _ in recorder.events]

    front = [("kv", 0), ("kv", 0), ("progress", 10), ("kv", 1), ("kv", 1), ("progress", 21)]
    rest = [("kv", 4), ("progress", 53), ("kv", 5), ("progress", 64)]
    own = [("positions", 1), ("kv", 2), ("progress", 32), ("positions", 2), ("kv", 3)]
    assert events(KvSelect.LAYER) == [*front, *own, ("progress", 42), ("positions", 3), *rest]
    assert events(KvSelect.HEAD) == events(KvSelect.LAYER)
    chosen_at_lp = [("progress", 32), ("positions", 1), ("kv", 2), ("kv", 3), ("progress", 42)]
    assert events(KvSelect.SHARED) == [*front, *chosen_at_lp, *rest]


@pytest.mark.parametrize("kv_select", list(KvSelect), ids=lambda mode: mode.value)
def test_what_was_told_is_never_written_again(tiny_model: Transformer, kv_select: KvSelect) -> None:
    recorder, _, _ = run(tiny_model, 100, replace(PARAMS, kv_select=kv_select), chunk=7)
    assert all(torch.equal(a, b) for a, b in zip(recorder.tensors, recorder.copies, strict=True))


def test_positions_are_of_the_right_kind(tiny_model: Transformer) -> None:
    recorder, plan, output = run(tiny_model, 100, replace(PARAMS, kv_select=KvSelect.HEAD))
    rows = {index: n for kind, index, n in recorder.events if kind == "positions"}
    for layout, spec in enumerate(plan.slab.layouts):
        expected = {PositionKind.IDENTITY: 0, PositionKind.SHARED: 1, PositionKind.PER_HEAD: 2}
        assert rows.get(layout, 0) == expected[spec.kind]
    assert output.kept_N.dtype is torch.int64
    assert output.kept_N.shape == (25,)
    assert output.logits_V.shape == (512,)
    assert output.logits_V.dtype is torch.float32
    assert 0 < output.select_seconds < output.prefill_seconds


def test_keep_all_takes_no_time_to_select(tiny_model: Transformer) -> None:
    _, _, output = run(tiny_model, 100, replace(PARAMS, keep_rate=1.0))
    assert output.select_seconds == 0.0
    assert output.kept_N.tolist() == list(range(100))


@pytest.mark.parametrize("keep_rate", [0.25, 1.0])
def test_stops_at_every_look(tiny_model: Transformer, keep_rate: float) -> None:
    params = replace(PARAMS, keep_rate=keep_rate)
    plan, runner = plan_for(tiny_model, 40, params), runner_of(tiny_model, chunk=16)
    looks = 0

    def count() -> bool:
        nonlocal looks
        looks += 1
        return False

    runner.run(token_ids=prompt(40), plan=plan, observer=Recorder(), stop=count)
    assert looks >= tiny_model.config.num_layers
    for stop_at in range(1, looks + 1):
        seen = 0

        def stop(stop_at: int = stop_at) -> bool:
            nonlocal seen
            seen += 1
            return seen >= stop_at

        with pytest.raises(CancelledError):
            runner.run(token_ids=prompt(40), plan=plan, observer=Recorder(), stop=stop)
        assert seen == stop_at, "it goes no further than the look that says stop"


def test_concurrent_prompts_equal_prompts_alone(tiny_model: Transformer) -> None:
    runner = runner_of(tiny_model)
    jobs = [
        (prompt(60 + 7 * i, seed=i), replace(PARAMS, kv_select=mode))
        for i, mode in enumerate([*KvSelect, *KvSelect])
    ]

    def alone(job: tuple[list[int], PruningParams]) -> tuple[PrefillOutput, CapturedKv]:
        ids, params = job
        plan = plan_for(tiny_model, len(ids), params)
        captured = CapturedKv(plan)
        output = runner.run(token_ids=ids, plan=plan, observer=captured, stop=lambda: False)
        return output, captured

    expected = [alone(job) for job in jobs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(alone, jobs * 4))
    for index, (output, captured) in enumerate(together):
        wanted, wanted_kv = expected[index % len(jobs)]
        assert torch.equal(output.kept_N, wanted.kept_N)
        torch.testing.assert_close(output.logits_V, wanted.logits_V, atol=1e-5, rtol=0)
        for layer in range(6):
            torch.testing.assert_close(
                captured.layer(layer)[0], wanted_kv.layer(layer)[0], atol=1e-5, rtol=0
            )


def test_observer_errors_reach_the_caller(tiny_model: Transformer) -> None:
    class Failing(Recorder):
        def progress(self, *, done_tokens: int) -> None:
            raise KeyError(done_tokens)

    plan = plan_for(tiny_model, 40)
    with pytest.raises(KeyError):
        runner_of(tiny_model).run(
            token_ids=prompt(40), plan=plan, observer=Failing(), stop=lambda: False
        )


@pytest.mark.parametrize("bad", [-1, 512, 10**9, 2**70])
def test_ids_outside_the_vocabulary(tiny_model: Transformer, bad: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(bad)):
        runner_of(tiny_model).run(
            token_ids=[*prompt(39), bad],
            plan=plan_for(tiny_model, 40),
            observer=Recorder(),
            stop=lambda: False,
        )


def test_empty_blocks_are_refused(tiny_model: Transformer) -> None:
    with pytest.raises(ConfigError, match="chunk_tokens"):
        runner_of(tiny_model, chunk=0)


def test_bfloat16(tiny_model: Transformer) -> None:
    half = random_model(tiny_model.config, seed=7, dtype="bfloat16")
    recorder, _, output = run(half, 100, replace(PARAMS, kv_select=KvSelect.HEAD))
    assert output.logits_V.dtype is torch.float32
    assert torch.isfinite(output.logits_V).all()
    assert {t.dtype for t in recorder.tensors} == {torch.bfloat16, torch.int32}

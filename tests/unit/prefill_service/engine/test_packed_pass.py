"""A pass of several prompts: both ways to run layers, and one prompt's trouble is its own."""

from dataclasses import replace

import pytest
import torch

from prefill_service.engine.prompt_pass import PackedPrompt
from prefill_service.engine.runner import PrefillOutput, PrefillRunner
from shared.errors import CancelledError, InvalidRequestError
from shared.model.attention import PrefillAttention, TorchAttention
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.plain_attention import PlainKernel
from shared.model.random import random_config, random_model
from shared.model.rope_config import RopeConfig, RopeKind
from shared.model.transformer import Transformer
from shared.types.methods import KvSelect, PruningParams
from tests.support.kernel_rows import DEVICE
from tests.support.packs import FailingKv, PackMember, PlainPackKernel, check_pack

PARAMS = PruningParams(
    pruning_layer=1,
    deferred_layers=1,
    aggregation_window=2,
    keep_rate=0.4,
    observation_window=4,
    pool_kernel=3,
)
FULL = replace(PARAMS, keep_rate=1.0)
ONE_BY_ONE = DeviceAttention((KernelRange(up_to=None, kernel=PlainKernel(16)),))
IN_ONE_CALL = ONE_BY_ONE.with_packs(PlainPackKernel())
WAYS: dict[str, PrefillAttention] = {
    "torch": TorchAttention(),
    "one by one": ONE_BY_ONE,
    "in one call": IN_ONE_CALL,
}


@pytest.fixture(params=list(WAYS))
def attention(request: pytest.FixtureRequest) -> PrefillAttention:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def model() -> Transformer:
    config = random_config("llama", num_layers=3, hidden_size=48, num_heads=4, num_kv_heads=2)
    return random_model(replace(config, head_dim=16), seed=5, device=str(DEVICE))


def runner_of(
    model: Transformer, attention: PrefillAttention, *, chunk: int = 1 << 20
) -> PrefillRunner:
    return PrefillRunner(model, attention=attention, chunk_tokens=chunk)


@pytest.mark.parametrize("chunk", [7, 1 << 20])
@pytest.mark.parametrize("lp", [0, 1, 2])
def test_mixed_prompts(
    model: Transformer, attention: PrefillAttention, lp: int, chunk: int
) -> None:
    pruned = replace(PARAMS, pruning_layer=lp)
    members = [
        PackMember(1, pruned),
        PackMember(23, pruned),
        PackMember(9, FULL),
        PackMember(17, replace(pruned, kv_select=KvSelect.SHARED)),
        PackMember(1, FULL),
        PackMember(16, replace(pruned, mass=0.6, min_rate=0.2, max_rate=0.9)),
    ]
    check_pack(runner_of(model, attention, chunk=chunk), model, members)


def test_an_end_at_any_look_is_one_prompts_own(
    model: Transformer, attention: PrefillAttention
) -> None:
    runner = runner_of(model, attention, chunk=16)
    for stops_at in range(1, 9):
        check_pack(
            runner,
            model,
            [
                PackMember(11, PARAMS),
                PackMember(14, PARAMS, stops_at=stops_at),
                PackMember(3, FULL),
            ],
        )


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_an_observer_that_fails(
    model: Transformer, attention: PrefillAttention, layer: int
) -> None:
    members = [PackMember(12, FULL, fails_at=layer), PackMember(20, PARAMS), PackMember(6, PARAMS)]
    check_pack(runner_of(model, attention), model, members)
    members[1:] = [PackMember(20, PARAMS, fails_at=layer)]
    check_pack(runner_of(model, attention), model, members)


def test_ids_of_another_vocabulary(model: Transformer) -> None:
    members = [PackMember(5, FULL), PackMember(6, FULL)]
    prompts = [
        PackedPrompt(
            token_ids=member.ids(),
            plan=member.plan(model),
            observer=FailingKv(member.plan(model), at=-1),
            stop=member.stop,
        )
        for member in members
    ]
    prompts[0] = replace(prompts[0], token_ids=[1, 2, 9_999, 3, 4])
    bad, good = runner_of(model, TorchAttention()).run_pack(prompts)
    assert isinstance(bad, InvalidRequestError)
    assert "9999" in bad.message
    assert isinstance(good, PrefillOutput)
    assert members[0].looks == 0, "it never took part"


def test_nobody_is_left(model: Transformer, attention: PrefillAttention) -> None:
    members = [PackMember(5, FULL, stops_at=2), PackMember(6, PARAMS, stops_at=3)]
    check_pack(runner_of(model, attention, chunk=4), model, members)
    assert [member.looks for member in members] == [2, 3]
    check_pack(runner_of(model, attention), model, [PackMember(5, FULL, stops_at=1)] * 2)


def test_what_breaks_the_pass_ends_every_prompt_in_it(model: Transformer) -> None:
    class Broken(TorchAttention):
        def causal(self, *_tensors: torch.Tensor) -> torch.Tensor:
            raise ValueError("planted")

    members = [PackMember(5, FULL, stops_at=1), PackMember(6, FULL), PackMember(7, PARAMS)]
    told: list[int] = []
    outcomes = runner_of(model, Broken()).run_pack(
        [
            PackedPrompt(
                token_ids=member.ids(),
                plan=member.plan(model),
                observer=FailingKv(member.plan(model), at=-1),
                stop=member.stop,
            )
            for member in members
        ],
        ended=lambda index, _error: told.append(index),
    )
    assert [type(outcome) for outcome in outcomes] == [CancelledError, ValueError, ValueError]
    assert told == [0, 1, 2]


def test_angles_that_stretch_with_each_prompts_own_length() -> None:
    config = random_config("llama", num_layers=2, hidden_size=48, num_heads=4, num_kv_heads=2)
    stretched = RopeConfig(kind=RopeKind.DYNAMIC, factor=2.0, original_max_position=10)
    model = random_model(replace(config, head_dim=16, rope=stretched), seed=5)
    members = [PackMember(30, FULL), PackMember(9, FULL), PackMember(15, FULL)]
    check_pack(runner_of(model, TorchAttention()), model, members)

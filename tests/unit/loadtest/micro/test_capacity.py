"""The bench of capacity: a worker is filled by its own admission, and its count follows."""

import json
from typing import Any

import pytest
import torch

from decode_service.engine.handoffs import Busy
from decode_service.engine.sizing import size_cache
from loadtest.micro import capacity
from loadtest.micro.capacity import EQUAL_PAGES, PRUNED, UNPRUNED, bench_capacity
from loadtest.micro.capacity_fill import CapacityPlan, Requests, fill_worker
from loadtest.micro.models import random_on_device
from loadtest.micro.step_shapes import TINY
from loadtest.micro.worker_room import RequestSize, WorkerRoom
from shared.errors import ConfigError, InvalidRequestError
from shared.types.methods import PruningParams
from tests.support.kernel_rows import DEVICE

on_cpu = pytest.mark.skipif(DEVICE.type == "cuda", reason="a GPU is filled with a whole model")
PRUNING = PruningParams(pruning_layer=3, deferred_layers=2)


@pytest.fixture(scope="module")
def model():
    return random_on_device(TINY.config, device=DEVICE, dtype=torch.float32)


@on_cpu
def test_without_a_gpu_a_tiny_model_is_served(capsys: pytest.CaptureFixture[str]):
    lines: list[str] = []
    plan = CapacityPlan(prompt_tokens=150, max_new_tokens=11)
    found = bench_capacity(device=DEVICE, plan=plan, progress=lines.append)
    assert json.loads(json.dumps(found)) == found
    workers = found["workers"]
    assert {name: worker["requests"] for name, worker in workers.items()} == {
        UNPRUNED: 2,
        # 27 pages in each whole layer are the limit, 10 a request, whatever the others hold.
        EQUAL_PAGES: 2,
        PRUNED: 5,
    }
    assert {worker["busy"] for worker in workers.values()} == {"pages_full"}
    assert found["ratios"][PRUNED] == 2.5
    for worker in workers.values():
        assert worker["held_bytes"] == worker["requests"] * worker["request_bytes"]
        assert worker["held_bytes"] <= worker["pool_bytes"] <= found["kv_bytes"]
    page = 16 * 2 * 2 * 16 * 4
    assert workers[UNPRUNED]["request_bytes"] == 6 * 10 * page
    assert workers[PRUNED]["request_bytes"] == (2 * 10 + 4 * 3) * page
    assert found["bounds"] == {}
    capacity._print(found)
    assert "2.50 of the unpruned, rest_share 0.300" in capsys.readouterr().out


def test_the_plan_of_the_documents():
    plan = CapacityPlan()
    assert (plan.whole.kept_tokens, plan.pruned.kept_tokens) == (32_768, 6553)
    assert plan.pruned.growth == 1023
    assert plan.rest_share == pytest.approx(474 / 2112)
    # By pages, of 32 layers with 4 whole ones.
    assert pytest.approx(3.11, abs=0.01) == 32 * 2112 / (4 * 2112 + 28 * 474)


@pytest.mark.parametrize(
    "sizes", [{"prompt_tokens": 0}, {"max_new_tokens": 0}, {"keep_rate": 0.0}, {"keep_rate": 1.0}]
)
def test_sizes_that_make_no_request(sizes: dict[str, Any]):
    with pytest.raises(ConfigError, match="at least one token each"):
        CapacityPlan(**sizes)


def test_a_request_that_never_fits_is_an_error(model):
    size = size_cache(model.geometry(), PRUNING, kv_bytes=1 << 20, pages_front=4, pages_rest=4)
    with pytest.raises(InvalidRequestError, match="KV pages"):
        fill_worker(model, Requests(size=CapacityPlan().whole, sparsity=None), size)


@on_cpu
def test_a_device_without_room_for_one_request_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(capacity, "_TINY_REQUESTS", 0.5)
    with pytest.raises(SystemExit):
        capacity.main(["--device", "cpu"])
    assert "KV pages" in capsys.readouterr().err


def test_a_room_grants_until_pages_are_gone_and_takes_them_back(model):
    size = size_cache(model.geometry(), PRUNING, kv_bytes=1, pages_front=12, pages_rest=5)
    room = WorkerRoom(model, size, max_model_len=64)
    asked = RequestSize(prompt_tokens=40, kept_tokens=20, max_new_tokens=9)
    first, second, third = (room.ask(name, asked) for name in ("a", "b", "c"))
    assert isinstance(third, Busy)
    assert not isinstance(first, Busy)
    assert not isinstance(second, Busy)
    room.fill(first, generator=torch.Generator(DEVICE).manual_seed(0))
    row = room.row(first, sparsity=None, first_token=7)
    assert list(row.prompt.slots.values()) == [40, 20]
    positions = row.prompt.layouts[1].positions_RN
    assert positions is not None
    assert positions[0, 0] == 0
    assert positions[0, -1] == 39
    assert bool((positions.diff() > 0).all())
    room.leave(second)
    assert not isinstance(room.ask("d", asked), Busy)


def test_bad_flags_say_what_is_wrong(capsys: pytest.CaptureFixture[str]):
    for flags, text in (
        (["--device", "cpu", "--shape", "gpt"], "no model shape 'gpt'"),
        (["--device", "cpu", "--keep", "2"], "a share between 0 and 1"),
        (["--device", "cpu", "--prompt", "2000"], "positions of the model"),
    ):
        with pytest.raises(SystemExit):
            capacity.main(flags)
        assert text in capsys.readouterr().err

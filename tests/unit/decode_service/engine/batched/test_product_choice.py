"""Who computes a step's products: chosen by time among those whose results are right."""

import pytest
import torch

from decode_service.engine.batched import products as products_module
from decode_service.engine.batched.product_choice import LIBRARY, TRITON, ProductChoice
from decode_service.engine.batched.products import ProductKind
from decode_service.kernels.thin_product import MOST_ROWS, ROW_PLANS, TILE_PLANS
from shared.errors import ConfigError
from shared.model.random import random_config, random_tensors
from shared.model.state import build_transformer
from tests.support.batch_rows import RowKind, TwoPaths
from tests.support.kernel_rows import DEVICE

pytestmark = pytest.mark.skipif(
    DEVICE.type == "cuda", reason="the models of these tests live on the CPU, interpreted"
)


@pytest.fixture(scope="module")
def model():
    """Half precision: bfloat16 products are wrong under the interpreter."""
    config = random_config("qwen2")
    tensors = random_tensors(config, seed=3)
    return build_transformer(config, tensors, dtype=torch.float16, model_hash="half", device="cpu")


class Clock:
    """Runs the work and gives the times that a test wants, in their order, over and over."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = seconds
        self.calls = 0

    def __call__(self, work) -> float:
        work()
        self.calls += 1
        return self._seconds[(self.calls - 1) % len(self._seconds)]


@pytest.mark.parametrize(("rows", "plans"), [(1, ROW_PLANS), (3, TILE_PLANS)])
@pytest.mark.parametrize(
    ("seconds", "best"), [((3.0, 2.0, 1.0), 1), ((3.0, 1.0, 2.0), 0), ((1.0, 2.0, 3.0), None)]
)
def test_the_fastest_serves(model, rows, plans, seconds, best):
    choice = ProductChoice(model, max_rows=4, timer=Clock(*seconds))
    choice(rows)
    wanted = None if best is None else plans[best]
    assert [each.plan for each in choice.found[rows].values()] == [wanted] * len(ProductKind)
    name = LIBRARY if wanted is None else f"triton {wanted.outputs}x{wanted.inputs}"
    assert choice.summary == {str(rows): name}


def test_a_gain_within_the_noise_is_none(model):
    choice = ProductChoice(model, max_rows=4, timer=Clock(1.0, 0.995, 0.995))
    choice(1)
    assert choice.summary == {"1": LIBRARY}


def test_it_is_measured_once(model):
    clock = Clock(3.0, 2.0, 1.0)
    choice = ProductChoice(model, max_rows=4, timer=clock)
    first = choice(1)
    calls = clock.calls
    assert choice(1) is first
    assert clock.calls == calls == 3 * len(ProductKind)


def test_more_rows_than_ours_are_for_go_to_the_library(model):
    choice = ProductChoice(model, max_rows=2 * MOST_ROWS, timer=Clock(3.0, 2.0, 1.0))
    choice(MOST_ROWS + 1)
    assert choice.summary == {str(MOST_ROWS + 1): LIBRARY}


def test_a_wrong_kernel_does_not_serve(model, monkeypatch):
    def wrong(x_BI, weight_OI, *, out_BO, **_):
        out_BO.fill_(1.0)

    monkeypatch.setattr(products_module, "row_product", wrong)
    choice = ProductChoice(model, max_rows=4, timer=Clock(1.0))
    choice(1)
    assert choice.summary == {"1": LIBRARY}
    found = choice.found[1][ProductKind.HEAD]
    assert all("off the library's" in reason for reason in found.rejected.values())
    asked = ProductChoice(model, max_rows=4, requested=TRITON, timer=Clock(1.0))
    with pytest.raises(ConfigError, match="cannot run here"):
        asked(1)


def test_without_a_gpu_nothing_is_measured(model):
    choice = ProductChoice(model, max_rows=4)
    choice(1)
    assert choice.summary == {"1": LIBRARY}


def test_steps_by_ours_are_those_of_the_pytorch_path(tiny_model):
    """All five products of whole steps of one to three rows, by the kernels alone."""
    choice = ProductChoice(tiny_model, max_rows=4, requested=TRITON, timer=Clock(1.0, 2.0))
    paths = TwoPaths(tiny_model, products=choice)
    rows = [paths.add(RowKind(sparsity=None, tokens=tokens)) for tokens in (20, 33, 47)]
    for count in (1, 2, 3, 3):
        paths.step(rows[:count])
    assert set(choice.summary) == {"1", "2", "4"}
    assert all(LIBRARY not in ways for ways in choice.summary.values())

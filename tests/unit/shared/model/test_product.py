"""Products of few rows equal the library's, however they are cut."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as s
from torch.nn import functional

from shared.model import product
from shared.model.product import add_linear, linear


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(
    rows=s.integers(0, 40),
    inputs=s.integers(1, 70),
    outputs=s.integers(1, 90),
    with_bias=s.booleans(),
)
def test_any_size_equals_the_reference(
    rows: int, inputs: int, outputs: int, with_bias: bool
) -> None:
    x, weight = drawn(rows, inputs), drawn(outputs, inputs, seed=1)
    bias = drawn(outputs, seed=2) if with_bias else None
    wanted = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(linear(x, weight, bias).double(), wanted, rtol=1e-4, atol=1e-4)
    y = drawn(rows, outputs, seed=3)
    wanted = y.double() + functional.linear(x.double(), weight.double())
    torch.testing.assert_close(add_linear(y, x, weight).double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1, 5, 32, 33])
def test_any_number_of_threads_equals_the_reference(count: int, rows: int) -> None:
    torch.set_num_threads(count)
    x, weight = drawn(rows, 64), drawn(96, 64, seed=1)
    torch.testing.assert_close(linear(x, weight), x @ weight.t(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 40])
def test_the_sum_may_be_written_over_its_summand(rows: int) -> None:
    whole, x, weight = drawn(rows + 2, 96), drawn(rows, 64, seed=1), drawn(96, 64, seed=2)
    wanted = whole.clone()
    wanted[1:-1] += x @ weight.t()
    part = whole[1:-1]
    assert add_linear(part, x, weight, out_TO=part) is part
    torch.testing.assert_close(whole, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_are_the_librarys_own_product(dtype: torch.dtype) -> None:
    x, weight = drawn(1, 64).to(dtype), drawn(96, 64).to(dtype)
    assert torch.equal(linear(x, weight), functional.linear(x, weight))


@pytest.mark.parametrize(
    ("outputs", "count", "blocks"),
    [(96, 1, 1), (96, 2, 2), (96, 5, 6), (97, 2, 1), (3, 8, 1), (49152, 16, 16)],
)
def test_blocks_are_equal_and_keep_every_thread_busy(outputs: int, count: int, blocks: int) -> None:
    assert product._blocks(outputs, count) == blocks

"""Products of few rows against float64, at sizes that no plan divides, poisoned outputs."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.kernels.thin_product import (
    ROW_PLANS,
    TILE_PLANS,
    Ending,
    PartRoom,
    ProductPlan,
    RowNorm,
    row_product,
    tile_product,
)
from shared.errors import ConfigError
from tests.support.kernel_rows import DEVICE

SMALL = ProductPlan(outputs=16, inputs=32, warps=1, stages=2)
EPS = 1e-5


class Case:
    """Inputs of one product and its result in float64."""

    def __init__(self, *, rows, inputs, outputs, dtype, ending, normed=False, biased=False):
        generator = torch.Generator().manual_seed(rows * 1000 + inputs + outputs)

        def numbers(*size):
            return torch.randn(size, generator=generator).to(dtype).to(DEVICE)

        self.ending = ending
        self.x_BI = numbers(rows, inputs)
        self.weight_OI = numbers(outputs * (2 if ending is Ending.GATE else 1), inputs) / 8
        self.scale_I = numbers(inputs) if normed else None
        self.bias_O = numbers(outputs) if biased else None
        self.before_BO = numbers(rows, outputs)

    def norm(self):
        return None if self.scale_I is None else RowNorm(scale_I=self.scale_I, eps=EPS)

    def out(self, dtype=None):
        """Where the product goes: what it is added to, or poison."""
        if self.ending is Ending.ADD:
            return self.before_BO.clone()
        return torch.full_like(self.before_BO, torch.nan, dtype=dtype)

    def wanted(self):
        x = self.x_BI
        if self.scale_I is not None:
            normed = F.rms_norm(x.float(), (x.shape[1],), self.scale_I.float(), EPS)
            x = normed.to(self.x_BI.dtype)
        y = x.double() @ self.weight_OI.double().t()
        if self.ending is Ending.GATE:
            outputs = self.before_BO.shape[1]
            y = F.silu(y[:, :outputs]) * y[:, outputs:]
        if self.bias_O is not None:
            y = y + self.bias_O.double()
        return y + self.before_BO.double() if self.ending is Ending.ADD else y

    def check(self, out):
        limit = 1e-5 if out.dtype is torch.float32 else 4e-3
        assert (out.double() - self.wanted()).norm() <= limit * self.wanted().norm()


@pytest.mark.parametrize("plan", [*ROW_PLANS, SMALL])
@pytest.mark.parametrize("ending", Ending)
def test_one_row(plan, ending):
    case = Case(
        rows=1,
        inputs=599,
        outputs=37,
        dtype=torch.float16,
        ending=ending,
        normed=ending is not Ending.ADD,
        biased=ending is Ending.STORE,
    )
    out = case.out()
    row_product(
        case.x_BI,
        case.weight_OI,
        plan=plan,
        out_BO=out,
        ending=ending,
        norm=case.norm(),
        bias_O=case.bias_O,
    )
    case.check(out)


@pytest.mark.parametrize("rows", [2, 16, 17, 64])
@pytest.mark.parametrize("ending", Ending)
def test_more_rows(rows, ending):
    case = Case(
        rows=rows,
        inputs=200,
        outputs=70,
        dtype=torch.float16,
        ending=ending,
        biased=ending is Ending.STORE,
    )
    out, room = case.out(), PartRoom(DEVICE, rows=rows)
    for plan in (*TILE_PLANS, SMALL):
        out = case.out()
        tile_product(
            case.x_BI,
            case.weight_OI,
            plan=plan,
            room=room,
            out_BO=out,
            ending=ending,
            bias_O=case.bias_O,
        )
        case.check(out)
        assert not room.arrived.any(), "the next launch counts from nothing"


def test_divided_inputs_are_added_up_in_their_order():
    """A matrix of few outputs, whose inputs four programs share: equal bits every time."""
    case = Case(rows=5, inputs=1024, outputs=16, dtype=torch.float16, ending=Ending.ADD)
    room, outs = PartRoom(DEVICE, rows=5), []
    room.sums.fill_(torch.nan)
    for _ in range(3):
        outs.append(case.out())
        tile_product(
            case.x_BI, case.weight_OI, plan=SMALL, room=room, out_BO=outs[-1], ending=Ending.ADD
        )
    case.check(outs[0])
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])
    assert room.sums.isfinite().any(), "the inputs were divided"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_wider_output_holds_rounded_values(rows):
    case = Case(rows=rows, inputs=64, outputs=20, dtype=torch.float16, ending=Ending.STORE)
    out = case.out(torch.float32)
    if rows == 1:
        row_product(case.x_BI, case.weight_OI, plan=SMALL, out_BO=out)
    else:
        room = PartRoom(DEVICE, rows=rows)
        tile_product(case.x_BI, case.weight_OI, plan=SMALL, room=room, out_BO=out)
    assert torch.equal(out, out.half().float()), "level logits stay level, as by the library"
    assert (out.double() - case.wanted()).norm() <= 4e-3 * case.wanted().norm()


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 150),
    outputs=st.integers(1, 50),
    ending=st.sampled_from(Ending),
)
def test_any_size(rows, inputs, outputs, ending):
    case = Case(rows=rows, inputs=inputs, outputs=outputs, dtype=torch.float32, ending=ending)
    out = case.out()
    if rows == 1:
        row_product(case.x_BI, case.weight_OI, plan=SMALL, out_BO=out, ending=ending)
    else:
        room = PartRoom(DEVICE, rows=rows)
        tile_product(case.x_BI, case.weight_OI, plan=SMALL, room=room, out_BO=out, ending=ending)
    case.check(out)


@pytest.mark.parametrize("size", [0, 24])
def test_a_plan_is_made_of_powers_of_two(size):
    with pytest.raises(ConfigError, match="power of two"):
        ProductPlan(outputs=size, inputs=32, warps=1, stages=1)

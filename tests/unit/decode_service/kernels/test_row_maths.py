"""Norm and gate of a decode step against torch's own functions."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know

from decode_service.kernels.row_maths import gate, rms_norm
from tests.support.kernel_rows import DEVICE


def numbers(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("width", [1, 63, 576, 1536])
def test_norm(width):
    x_BE, scale_E = 3.0 * numbers(3, width), numbers(width, seed=1)
    out_BE = torch.full_like(x_BE, torch.nan)
    rms_norm(x_BE, scale_E, eps=1e-5, out_BE=out_BE)
    torch.testing.assert_close(out_BE, F.rms_norm(x_BE, (width,), scale_E, 1e-5))


@pytest.mark.parametrize("width", [1, 500, 1024, 1536])
def test_gate(width):
    gate_up = 5.0 * numbers(2, 2 * width)
    out_BI = torch.full((2, width), torch.nan, device=DEVICE)
    gate(gate_up, out_BI=out_BI)
    torch.testing.assert_close(out_BI, F.silu(gate_up[:, :width]) * gate_up[:, width:])


def test_rows_of_zeros_stay_zeros():
    out_BE = torch.full((1, 8), torch.nan, device=DEVICE)
    rms_norm(torch.zeros((1, 8), device=DEVICE), numbers(8), eps=1e-6, out_BE=out_BE)
    assert not out_BE.any()

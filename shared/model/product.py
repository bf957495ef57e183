"""Products of few rows with a matrix of weights.

A decode step multiplies a handful of rows, and its time is that of reading the weights. On a CPU
the library's product of few rows reads them with one thread, whatever the number of threads; cut
into blocks of output columns, it reads them with all.

Shapes: T rows, I inputs, O outputs, B blocks.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch users know
from torch import Tensor

_FEW_ROWS = 32
"""Rows up to which blocks were faster wherever it was measured; above, one product is threaded."""
_MOST_BLOCKS_A_THREAD = 4


def linear(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """X W^T + b, [T, O]; equal to `torch.nn.functional.linear` up to rounding."""
    blocks = _blocks_for(x_TI, weight_OI)
    if blocks == 1:
        return F.linear(x_TI, weight_OI, bias_O)
    weight_BIO = weight_OI.view(blocks, -1, weight_OI.shape[1]).transpose(1, 2)
    out_BTO = torch.bmm(x_TI.expand(blocks, *x_TI.shape), weight_BIO)
    out_TO = out_BTO.transpose(0, 1).reshape(x_TI.shape[0], -1)
    return out_TO if bias_O is None else out_TO.add_(bias_O)


def add_linear(
    y_TO: Tensor, x_TI: Tensor, weight_OI: Tensor, *, out_TO: Tensor | None = None
) -> Tensor:
    """Y + x W^T, [T, O]; into `out_TO` if given, which may be y itself."""
    if _blocks_for(x_TI, weight_OI) == 1:
        return torch.addmm(y_TO, x_TI, weight_OI.t(), out=out_TO)
    return torch.add(y_TO, linear(x_TI, weight_OI), out=out_TO)


def _blocks_for(x_TI: Tensor, weight_OI: Tensor) -> int:
    few = 0 < x_TI.shape[0] <= _FEW_ROWS
    if not few or x_TI.device.type != "cpu" or x_TI.dtype is not torch.float32:
        return 1
    return _blocks(weight_OI.shape[0], torch.get_num_threads())


@lru_cache(maxsize=256)
def _blocks(outputs: int, threads: int) -> int:
    """The fewest equal blocks that keep every thread busy; 1 where there are none."""
    if threads == 1:
        return 1
    most = min(outputs, threads * _MOST_BLOCKS_A_THREAD)
    return next((count for count in range(threads, most + 1) if outputs % count == 0), 1)

"""Products of a decode step's rows with the weights of whole models: errors, times, bytes.

The choice that a decode worker makes at its start (`product_choice.py`), with what it measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from decode_service.engine.batched.product_choice import (
    AUTO,
    TRITON,
    MeasuredProduct,
    ProductChoice,
    name_of,
)
from decode_service.engine.batched.products import ProductKind
from decode_service.kernels.thin_product import (
    ROW_PLANS,
    TILE_PLANS,
    Ending,
    PartRoom,
    RowNorm,
    row_product,
    tile_product,
)
from loadtest.micro.models import random_on_device
from shared.errors import InternalError
from shared.model.shapes import MODEL_SHAPES
from shared.model.transformer import Transformer

_LAYERS = 10
"""Layers of a measured model: enough that a GPU's caches hold none when its turn comes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductShape:
    """Steps of one model."""

    model: str
    """Name of its shape."""
    rows: tuple[int, ...]
    """Rows of a step."""
    layers: int = _LAYERS
    """Layers that are drawn."""


PRODUCT_SHAPES = {
    "products llama-3.1-8b": ProductShape(model="llama-3.1-8b", rows=(1, 4, 16, 64)),
    "products r1-qwen-1.5b": ProductShape(model="r1-qwen-1.5b", rows=(1, 64)),
}
ODD_PRODUCT_SHAPES = {"products tiny": ProductShape(model="tiny", rows=(1, 3), layers=1)}


def time_products(
    shape: ProductShape, *, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """What serves each product, by rows; on a GPU with the time and the rate of every way.

    Raises:
        InternalError: a kernel is wrong on this device.
    """
    config = replace(MODEL_SHAPES[shape.model], num_layers=shape.layers)
    model = random_on_device(config, device=device, dtype=dtype)
    on_gpu = device.type == "cuda"
    choice = ProductChoice(
        model,
        max_rows=max(shape.rows),
        requested=AUTO if on_gpu else TRITON,
        timer=None if on_gpu else _once,
    )
    by_rows = {}
    for rows in shape.rows:
        choice(rows)
        found = choice.found[rows]
        _require_right(found)
        by_rows[str(rows)] = {
            kind.value: _figures(model, kind, each) for kind, each in found.items()
        }
    return {"rows": by_rows}


def launch_products() -> None:
    """Every kernel once on small tensors of the CPU: what a compiler wants to see."""
    x_BI, weight_OI = torch.zeros(33, 4096), torch.zeros(512, 4096)
    x_BI, weight_OI = x_BI.bfloat16(), weight_OI.bfloat16()
    scale_I, bias_O = weight_OI[0], x_BI.new_zeros(512)
    norm = RowNorm(scale_I=scale_I, eps=1e-5)
    for plan in ROW_PLANS:
        out_BO = x_BI.new_zeros(1, 512)
        row_product(x_BI[:1], weight_OI, plan=plan, out_BO=out_BO, norm=norm, bias_O=bias_O)
        row_product(x_BI[:1], weight_OI, plan=plan, out_BO=out_BO, ending=Ending.ADD)
        half_BO = x_BI.new_zeros(1, 256)
        row_product(x_BI[:1], weight_OI, plan=plan, out_BO=half_BO, ending=Ending.GATE, norm=norm)
    for rows in (2, 33):
        room = PartRoom(x_BI.device, rows=rows)
        for plan in TILE_PLANS:
            for ending, outputs, bias in (
                (Ending.STORE, 512, bias_O),
                (Ending.ADD, 512, None),
                (Ending.GATE, 256, None),
            ):
                tile_product(
                    x_BI[:rows],
                    weight_OI,
                    plan=plan,
                    room=room,
                    out_BO=x_BI.new_zeros(rows, outputs),
                    ending=ending,
                    bias_O=bias,
                )


def _once(work: Callable[[], None]) -> float:
    """Runs it; what the interpreter takes says nothing."""
    work()
    return 1.0


def _require_right(found: Mapping[ProductKind, MeasuredProduct]) -> None:
    wrong = [
        f"{kind.value} by {name}: {reason}"
        for kind, each in found.items()
        for name, reason in each.rejected.items()
    ]
    if wrong:
        raise InternalError(f"products are wrong on this device: {'; '.join(wrong)}; report this")


def _figures(model: Transformer, kind: ProductKind, found: MeasuredProduct) -> dict[str, Any]:
    first = model.layers[0].weights
    weight = model.head_VE if kind is ProductKind.HEAD else getattr(first, kind.value)
    read = weight.numel() * weight.element_size()
    figures: dict[str, Any] = {"serves": name_of(found.plan), "bytes": read}
    if model.device.type == "cuda":
        figures["us"] = dict(found.microseconds)
        figures["tb_per_s"] = {name: read / us / 1e6 for name, us in found.microseconds.items()}
    return figures

"""Which kernel computes each product of a step: measured on the model's own weights.

A kernel of ours counts only after its result was right; then the fastest serves. Products of one
number of rows are measured when the first step of that many rows is made, which a worker does
before it is ready. Layers are gone through one after the other, as a step does, so that a large
model's weights are not found in the cache.

Shapes: B rows, E hidden width, I inputs of a product, O outputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from decode_service.config import PRODUCTS
from decode_service.engine.batched.products import ProductKind, ProductWays, StepProducts
from decode_service.kernels.thin_product import (
    MOST_ROWS,
    ROW_PLANS,
    TILE_PLANS,
    PartRoom,
    ProductPlan,
)
from shared.errors import ConfigError
from shared.model.device_time import seconds_on_device
from shared.model.kernel_check import LARGEST_ERROR, said
from shared.model.layers import LayerWeights
from shared.model.transformer import Transformer

AUTO, LIBRARY, TRITON = PRODUCTS
"""Measured; the library's products; ours wherever they are right, the fastest of them."""

MEASURED_TYPES = (torch.bfloat16, torch.float16)
"""Others would not go through the tensor cores."""

_REPEATS = 5
_COLD_BYTES = 400_000_000
"""Weights that are gone through in turn: several times what the caches of a GPU hold."""
_WORTH = 0.99
"""Share of the library's time from which on a kernel of ours is taken."""

Timer = Callable[[Callable[[], None]], float]
"""Gives the seconds of what a call enqueues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProduct:
    """What was found of one product at one number of rows."""

    plan: ProductPlan | None
    """Of our kernel; None: the library's product serves."""
    microseconds: Mapping[str, float]
    """Of one product, by way; empty if nothing was timed."""
    rejected: Mapping[str, str]
    """Why a plan does not count."""


ChoiceObserver = Callable[[int, Mapping[ProductKind, MeasuredProduct]], None]


class ProductChoice:
    """Chooses for every number of rows, once.

    Args:
        model: whose weights.
        max_rows: rows of one step at most.
        requested: one of `PRODUCTS`.
        on_choice: is told the number of rows and what was found for it.
        timer: how a call is timed; None: by events around a graph of it.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        max_rows: int,
        requested: str = AUTO,
        on_choice: ChoiceObserver | None = None,
        timer: Timer | None = None,
    ) -> None:
        self._model = model
        self._requested = requested
        self._timer = timer or _on_device
        self._on_choice = on_choice
        serves = requested == TRITON or (
            requested == AUTO
            and model.dtype in MEASURED_TYPES
            and (model.device.type == "cuda" or timer is not None)
        )
        rows = min(max_rows, MOST_ROWS)
        self._room = PartRoom(model.device, rows=rows) if serves else None
        self._products: dict[int, StepProducts] = {}
        self._found: dict[int, Mapping[ProductKind, MeasuredProduct]] = {}

    def __call__(self, rows: int) -> StepProducts:
        """The products of steps of so many rows.

        Raises:
            ConfigError: kernels of ours were asked for, and one of them is wrong here.
        """
        if rows not in self._products:
            self._products[rows] = self._chosen(rows)
        return self._products[rows]

    @property
    def summary(self) -> dict[str, str]:
        """What serves, by number of rows: for health and logs."""
        return {str(rows): _summary(found) for rows, found in sorted(self._found.items())}

    @property
    def found(self) -> Mapping[int, Mapping[ProductKind, MeasuredProduct]]:
        """What was measured, by number of rows."""
        return self._found

    def _chosen(self, rows: int) -> StepProducts:
        room = self._room
        if room is None or rows > MOST_ROWS:
            self._found[rows] = {}
            return StepProducts(self._model)
        with torch.inference_mode():
            self._found[rows] = found = {kind: self._measured(kind, rows) for kind in ProductKind}
        if self._on_choice is not None:
            self._on_choice(rows, found)
        ways = {kind: each.plan for kind, each in found.items()}
        return StepProducts(self._model, ways=ways, room=room)

    def _measured(self, kind: ProductKind, rows: int) -> MeasuredProduct:
        model, room = self._model, self._room
        trial = _Trial(model, kind, rows)
        by_library = StepProducts(model)
        wanted = trial.result(by_library)
        arms: dict[str, tuple[StepProducts, ProductPlan | None]] = {}
        if self._requested == AUTO:
            arms[LIBRARY] = (by_library, None)
        rejected: dict[str, str] = {}
        for plan in _plans(rows):
            ways: ProductWays = {kind: plan}
            products = StepProducts(model, ways=ways, room=room)
            fault = _fault(trial, products, wanted)
            if fault:
                rejected[name_of(plan)] = fault
            else:
                arms[name_of(plan)] = (products, plan)
        if self._requested == TRITON and not arms:
            raise ConfigError(
                f"products {TRITON!r} cannot run here: {kind.value} of {rows} rows: "
                f"{'; '.join(rejected.values())}; use {AUTO!r} or {LIBRARY!r}"
            )
        if len(arms) == 1:
            ((_, plan_left),) = arms.values()
            return MeasuredProduct(plan=plan_left, microseconds={}, rejected=rejected)
        times = self._times(trial, {name: products for name, (products, _) in arms.items()})
        best = min(times, key=lambda name: times[name] * (_WORTH if name == LIBRARY else 1.0))
        return MeasuredProduct(plan=arms[best][1], microseconds=times, rejected=rejected)

    def _times(self, trial: "_Trial", arms: Mapping[str, StepProducts]) -> dict[str, float]:
        """Microseconds of one product each."""
        times: dict[str, float] = {}
        for name, products in arms.items():
            seconds = self._timer(lambda products=products: trial.run_all(products))  # type: ignore[misc]
            times[name] = round(1e6 * seconds / trial.count, 2)
        return times


class _Trial:
    """One product on made-up rows, over as many layers as make every weight a cold one."""

    def __init__(self, model: Transformer, kind: ProductKind, rows: int) -> None:
        config, self._kind, self._rows = model.config, kind, rows
        generator = torch.Generator(device=model.device).manual_seed(0)

        def noise(width: int) -> Tensor:
            size = (rows, width)
            made = torch.randn(size, generator=generator, device=model.device)
            return made.to(model.dtype)

        self._x_BE = noise(config.hidden_size)
        self._residual_BE = noise(config.hidden_size)
        first = model.layers[0].weights
        self._of_BI = {
            ProductKind.OUT: lambda: noise(first.out.shape[1]),
            ProductKind.DOWN: lambda: noise(first.down.shape[1]),
        }.get(kind, lambda: self._x_BE)()
        self._layers = self._cold(model)

    @property
    def count(self) -> int:
        """Products of one run."""
        return len(self._layers)

    def result(self, products: StepProducts) -> Tensor:
        """Float32 result with the first layer's weights."""
        x_BE = torch.zeros_like(self._residual_BE)  # a larger one would hide errors
        out = self._run(products, self._layers[0], x_BE)
        return (x_BE if out is None else out).float()

    def run_all(self, products: StepProducts) -> None:
        """Every layer's."""
        for weights in self._layers:
            self._run(products, weights, self._residual_BE)

    def _run(
        self, products: StepProducts, weights: LayerWeights, residual_BE: Tensor
    ) -> Tensor | None:
        match self._kind:
            case ProductKind.QKV:
                return products.project(self._x_BE, weights)
            case ProductKind.GATE_UP:
                return products.gated(self._x_BE, weights)
            case ProductKind.HEAD:
                return products.logits(self._x_BE)
            case ProductKind.OUT:
                products.add_attention(residual_BE, self._of_BI, weights)
            case ProductKind.DOWN:
                products.add_hidden(residual_BE, self._of_BI, weights)
        return None

    def _cold(self, model: Transformer) -> Sequence[LayerWeights]:
        """Layers until their weights of this kind no longer fit a cache; one for the head."""
        if self._kind is ProductKind.HEAD:
            return [model.layers[0].weights]
        taken: list[LayerWeights] = []
        total = 0
        for layer in model.layers:
            taken.append(layer.weights)
            weight = getattr(layer.weights, self._kind.value)
            total += weight.numel() * weight.element_size()
            if total > _COLD_BYTES:
                break
        return taken


def _plans(rows: int) -> Iterator[ProductPlan]:
    yield from ROW_PLANS if rows == 1 else TILE_PLANS


def _fault(trial: _Trial, products: StepProducts, wanted: Tensor) -> str:
    """Why a kernel's results cannot be used; nothing if they are right."""
    try:
        got = trial.result(products)
        off = float((got - wanted).norm() / wanted.norm())
    except Exception as error:  # noqa: BLE001  a compiler may end in an error of its own kind
        return said(error)
    # Not a number is no error below the limit either.
    return "" if off < LARGEST_ERROR else f"its output is {off:.2g} off the library's"


def name_of(plan: ProductPlan | None) -> str:
    """A way in words."""
    if plan is None:
        return LIBRARY
    return f"triton {plan.outputs}x{plan.inputs}"


def _summary(found: Mapping[ProductKind, MeasuredProduct]) -> str:
    if not found:
        return LIBRARY
    names = {kind: name_of(each.plan) for kind, each in found.items()}
    if len(set(names.values())) == 1:
        return next(iter(names.values()))
    return ", ".join(f"{kind.value} {name}" for kind, name in names.items())


def _on_device(work: Callable[[], None]) -> float:
    """Median seconds of a graph of it: launched one by one, the host would be timed."""
    work()
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    graph.replay()
    return median(seconds_on_device(graph.replay) for _ in range(_REPEATS))

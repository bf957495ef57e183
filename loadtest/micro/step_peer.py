"""vLLM beside the bench of decode steps: one engine a model, before and after ours.

Where both fit the device's memory, vLLM is timed before and after every case of ours. Where they do
not, all its cases are timed first, then it ends, and ours follow; the result says which it was.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from loadtest.micro.step_bounds import step_bounds
from loadtest.micro.step_rows import GROWTH
from loadtest.micro.step_shapes import StepCase
from loadtest.micro.vllm_peer import VLLM, VllmPeer, VllmSettings, why_no_vllm
from loadtest.spread import spread
from shared.errors import UnavailableError
from shared.model.config import ModelConfig
from shared.model.state import tensor_shapes

_STEPS = 100
"""Gaps between tokens of one look at vLLM, whose median counts."""

_STEP_TOKENS = 32_768
"""Most prompt tokens of one of vLLM's steps; prompts are not timed here."""

_ROOM_BYTES = 8 << 30
"""Of activations, graphs and the driver, in both processes together."""

_BY_TURNS = "vllm, ours, vllm, both in memory"
_ONE_AFTER_THE_OTHER = "vllm first, ended, then ours: both do not fit the device's memory"
_OURS_FAILED = "vllm, then ours, which failed"


def step_settings(cases: Mapping[str, StepCase]) -> VllmSettings:
    """An engine for all of some cases of one model."""
    each = list(cases.values())
    return VllmSettings(
        config=each[0].config,
        max_tokens=max(case.context for case in each) + GROWTH,
        batches=tuple(case.batch for case in each),
        kv_tokens=max(case.batch * (case.context + GROWTH // 2) for case in each) + GROWTH,
        step_tokens=_STEP_TOKENS,
    )


def fit_together(case: StepCase, settings: VllmSettings, *, memory_bytes: int) -> bool:
    """Whether ours, its float32 copy for the comparison included, has room beside an engine."""
    weights = 2 * sum(math.prod(shape) for shape in tensor_shapes(case.config).values())
    config = case.config
    token = 4 * config.num_layers * config.num_kv_heads * config.head_dim
    row = (case.context + GROWTH) * token
    ours = 3 * weights + (case.batch + 2) * row
    theirs = weights + settings.kv_tokens * token
    return ours + theirs + _ROOM_BYTES < memory_bytes


class StepPeer:
    """vLLM's arm of a run of cases.

    Args:
        cases: all that will be timed, by name.
        device: a CUDA device, on which engines run too.
        given: an engine that runs already, for the cases of its model; it is ended here.
        wanted: start engines.
        progress: is told what happens.
        growth: tokens that rows of ours have beyond a case's context when they are timed.
    """

    def __init__(
        self,
        cases: Mapping[str, StepCase],
        *,
        device: torch.device,
        given: VllmPeer | None,
        wanted: bool,
        progress: Callable[[str], None],
        growth: int = 0,
    ) -> None:
        self._cases = cases
        self._growth = growth
        self._device = device
        self._progress = progress
        self._reason = why_no_vllm() if wanted else "left out by --peer"
        self._engine = given
        self._looks: dict[str, list[dict[str, Any]]] = {}
        self._failed: dict[str, str] = {}
        if given is None and cases and self._reason is None:
            # It starts while small models are compared.
            self._engine = VllmPeer(step_settings(self._like(next(iter(cases.values())).config)))

    def beside(self, name: str, ours: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result of a case with vLLM's and what was asked for.

        Args:
            name: of the case.
            ours: times our arms.
        """
        if self._reason is not None:
            found = ours() | {VLLM: {"used": False, "reason": self._reason}}
            return found | {"bounds": step_bounds(name, found)}
        case = self._cases[name]
        facts: dict[str, Any] = {}
        if name not in self._looks and name not in self._failed:
            facts = self._look_at_all(case.config)
        together = self._engine is not None
        found = ours()
        if together:
            self._look(name)
        order = _BY_TURNS if together else _ONE_AFTER_THE_OTHER
        found[VLLM] = self._told(name, order=order) | facts
        return found | {"bounds": step_bounds(name, found)}

    def seen(self, name: str) -> dict[str, Any]:
        """What is known of vLLM at a case that ours failed at; nothing where it was not timed."""
        return {VLLM: self._told(name, order=_OURS_FAILED)} if name in self._looks else {}

    def close(self) -> None:
        """Ends the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _look_at_all(self, config: ModelConfig) -> dict[str, Any]:
        """Times every case of a model once; afterwards an engine is there only if it has room."""
        cases = self._like(config)
        settings = step_settings(cases)
        if self._engine is None or not self._engine.settings.covers(settings):
            self.close()
            self._engine = VllmPeer(settings)
        facts = {}
        for name in cases:
            self._look(name)
        if self._engine is not None:
            facts = {"engine": self._engine.facts}
            running = self._engine.settings
            memory = torch.cuda.get_device_properties(self._device).total_memory
            if not all(fit_together(c, running, memory_bytes=memory) for c in cases.values()):
                self._progress("vllm and our steps do not fit together: it ends, ours follow")
                self.close()
        return facts

    def _look(self, name: str) -> None:
        """Times a case; an engine that fails is done with, and its cases say so."""
        case = self._cases[name]
        if self._engine is None:
            self._failed.setdefault(name, "its engine ended")
            return
        try:
            look = self._engine.between_tokens(
                batch=case.batch, tokens=case.context + self._growth, steps=_STEPS
            )
        except UnavailableError as error:
            self._failed[name] = str(error)
            self._progress(f"vllm, {name}: {error}")
            self.close()
            return
        self._looks.setdefault(name, []).append(look)
        self._progress(f"vllm, {name}: {json.dumps(look)}")

    def _told(self, name: str, *, order: str) -> dict[str, Any]:
        failed = {"failed": self._failed[name]} if name in self._failed else {}
        if name not in self._looks:
            return {"used": False, **failed}
        looks = self._looks[name]
        medians = [look["step_ms"]["median"] for look in looks]
        return {"used": True, "order": order, "step_ms": spread(medians), "looks": looks, **failed}

    def _like(self, config: ModelConfig) -> dict[str, StepCase]:
        return {name: case for name, case in self._cases.items() if case.config == config}

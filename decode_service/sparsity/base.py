"""What a page policy is: which KV slots each decode layer of one row reads.

A policy is the method with a request's parameters. For each row it makes a `RowPolicy`, which keeps
what the method remembers between steps, and for each step of that row a `StepPolicy`, which the
runner asks layer by layer: `select` before a layer's attention, `observe` after it when the policy
wants evidence, `commit` once the step has succeeded. Nothing is remembered before `commit`, so a
step that failed may be repeated.

Policies only hide slots, they free none: all layers of a length group share one page table, and a
page that one layer will never read again is still read by others.

Shapes: H query heads, G KV heads, R rows of a selection (1: one choice for all heads; G; or H),
U units of a selection, D head size, T slots of the row in one layer.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch

from decode_service.sparsity.layouts import KvLayout
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE, pages_for


class LayerRole(Enum):
    """What a decoder layer does at a decode step."""

    FULL = "full"
    """Reads every slot and plans nothing."""
    DELTA = "delta"
    """Reads every slot and chooses what later layers read."""
    SPARSE = "sparse"
    """Reads a choice: an earlier layer's or its own."""


class Evidence(Enum):
    """What a policy wants to know of a layer's attention."""

    NONE = "none"
    """Nothing."""
    SCORES = "scores"
    """Each slot's largest probability among a KV head's query heads, float32 [G, T]."""
    PROBS = "probs"
    """Every query head's probabilities, float32 [H, T]; heads h*H/G.. belong to KV head h."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Slots that a layer reads, in units of a page (16 slots) or of one slot."""

    units_RU: torch.Tensor
    """Logical unit numbers in the layer's own slot order, int64, each row strictly ascending. A row
    of pages ends with the row's last page. R is 1, G or H."""
    unit: int
    """Slots of a unit: 16 or 1."""
    visible: int
    """Slots to read in each row once its units are laid end to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFacts:
    """What stays the same over a row's life."""

    prompt_tokens: int
    """Original prompt length L; generated token t sits at position L + t."""
    layouts: tuple[KvLayout, ...]
    """Slot-to-position maps of the prompt."""
    layer_layouts: tuple[int, ...]
    """Layout of each layer."""
    num_heads: int
    """Query heads H."""
    num_kv_heads: int
    """KV heads G."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return len(self.layer_layouts)

    def layout_of(self, layer: int) -> KvLayout:
        """The map of one layer."""
        return self.layouts[self.layer_layouts[layer]]

    def length(self, layer: int, *, generated: int) -> int:
        """Slots T of a layer once `generated` tokens of the answer have their KV."""
        return self.layout_of(layer).slots + generated


class LayerKv(Protocol):
    """Keys of one row in one layer, the fed token included; tensors live until the next call."""

    @property
    def length(self) -> int:
        """Slots T."""

    def keys(self, *, first_page: int = 0) -> torch.Tensor:
        """Rotated keys of the slots from a logical page on, [T - 16 * first_page, G, D]."""


class StepPolicy(Protocol):
    """One step of one row. Layers come in ascending order, each once."""

    def evidence(self, layer: int) -> Evidence:
        """What `observe` of this layer must be given."""

    def select(self, layer: int, q_HD: torch.Tensor, kv: LayerKv) -> Selection | None:
        """What a layer reads; None: every slot. The fed token's slot is always among them.

        Args:
            layer: decoder layer.
            q_HD: rotated query, in the model's dtype.
            kv: the layer's keys.
        """

    def observe(self, layer: int, evidence: torch.Tensor) -> None:
        """Takes the evidence over the slots that the layer read, in reading order.

        T in its shape is what `select` made visible. Called only where `evidence` is not NONE.
        """

    def commit(self) -> None:
        """The step succeeded: remembers what later steps need."""


class UnobservedStep:
    """The part of a step that wants to know nothing of any layer's attention."""

    def evidence(self, layer: int) -> Evidence:
        """None of any layer."""
        del layer
        return Evidence.NONE

    def observe(self, layer: int, evidence: torch.Tensor) -> None:
        """Is not called: no evidence is wanted.

        Raises:
            AssertionError: it was called.
        """
        raise AssertionError(f"layer {layer} reported {tuple(evidence.shape)}, nothing was asked")


class RowPolicy(Protocol):
    """A policy at work on one row."""

    @property
    def roles(self) -> tuple[LayerRole, ...]:
        """Role of every layer."""

    def step(self, *, generated: int) -> StepPolicy:
        """Begins a step.

        Args:
            generated: tokens of the answer that have their KV after this step, the fed token's
                included, so at least 1.
        """


class PagePolicy(Protocol):
    """A method with one request's parameters. Immutable; rows may share one."""

    @property
    def name(self) -> str:
        """Name in the registry."""

    def begin(self, facts: RowFacts, *, force: bool = False) -> RowPolicy:
        """Takes up a row.

        Args:
            facts: the row.
            force: select even where the budget covers every slot: a check of the sparse path.

        Raises:
            ConfigError: the parameters do not fit the row's model.
        """


def require_layers(full_layers: tuple[int, ...], *, num_layers: int) -> None:
    """Checks that a model has every layer of F.

    Raises:
        ConfigError: F names a layer that the model does not have.
    """
    if full_layers[-1] >= num_layers:
        raise ConfigError(
            f"full_layers names layer {full_layers[-1]} of a model of {num_layers} layers "
            f"(0..{num_layers - 1}): the profile belongs to another model; give layers of this one"
        )


def visible_slots(kv_length: int, num_selected: int) -> int:
    """Slots in `num_selected` pages of a row of `kv_length` slots, its last page among them."""
    last_page = kv_length - (pages_for(kv_length) - 1) * PAGE_SIZE
    return (num_selected - 1) * PAGE_SIZE + last_page


def page_selection(pages_RU: torch.Tensor, *, kv_length: int) -> Selection:
    """A selection of pages [R, U] of a layer that holds `kv_length` slots."""
    visible = visible_slots(kv_length, pages_RU.shape[-1])
    return Selection(units_RU=pages_RU, unit=PAGE_SIZE, visible=visible)


def slot_selection(slots_RU: torch.Tensor) -> Selection:
    """A selection of single slots [R, U]."""
    return Selection(units_RU=slots_RU, unit=1, visible=slots_RU.shape[-1])

"""Decodes one prompt without servers, by the engine's path, and tells which slots layers read."""

from typing import Any

from decode_service.engine.attention import DecodeAttention
from decode_service.engine.runner import DecodeRunner, LayerRead
from decode_service.engine.sequence import Sequence
from decode_service.engine.solo import PromptTensors, solo_row
from decode_service.sparsity.base import LayerRole
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams

Choice = list[list[int]]
"""Units that a layer read, row by row."""


class PageTrace:
    """A step observer that keeps what each layer of one row read, and where choices were renewed.

    Args:
        row: the row to watch.
    """

    def __init__(self, row: Sequence) -> None:
        self._row = row
        self.pages: dict[int, list[int] | list[list[int]]] = {}
        """Units read by each layer, in its own slot order; a list a head where heads choose."""
        self.units: dict[int, int] = {}
        """Slots of a unit: 16, pages; 1, single slots."""
        self.refreshed: list[int] = []
        """Δ-layers that renewed the choice of the layers after them."""
        self.choices: dict[int, Choice] = {}
        """Units by row, of the layers that read a choice."""

    def layer_read(self, seen: LayerRead) -> None:
        """Keeps one layer's reads."""
        if seen.row is not self._row:
            return
        selection = seen.read.selection
        self.units[seen.layer] = PAGE_SIZE if selection is None else selection.unit
        if selection is None:
            self.pages[seen.layer] = list(range(pages_for(seen.read.slots)))
        else:
            rows = selection.units_RU.tolist()
            self.pages[seen.layer] = rows[0] if len(rows) == 1 else rows
            self.choices[seen.layer] = rows
        if seen.planned and self._row.row_policy.roles[seen.layer] is LayerRole.DELTA:
            self.refreshed.append(seen.layer)


def churn(before: Choice, after: Choice) -> float:
    """1 - |A & B| / |A | B| of two choices in one layer, mean over their rows.

    0: the same units; 1: none in common.
    """
    shares = []
    for old, new in zip(before, after, strict=True):
        both = len({*old} & {*new})
        shares.append(1.0 - both / (len(old) + len(new) - both))
    return sum(shares) / len(shares)


def inspect_pages(
    model: Transformer,
    *,
    attention: DecodeAttention,
    prompt: PromptTensors,
    first_token: int,
    sparsity: SparsityParams | None,
    max_tokens: int,
) -> dict[str, Any]:
    """Generates `max_tokens` greedy tokens, the given first one counted, past any end-of-text.

    Keys: policy (its name), roles (full, delta or sparse, layer by layer), token_ids (begins with
    the first token) and steps. Of each step: position of the fed token; layers, the logical units
    that each layer read in its own slot order (one list, or one list a head where heads choose
    apart); unit, the slots of a unit in each layer (16: pages, 1: slots); refreshed, the Δ-layers
    that chose anew; churn, 1 minus the Jaccard similarity of each selecting layer's choice and its
    choice one step earlier; attended and dense token-layers.

    Raises:
        ManifestError: the prompt's tensors contradict each other.
        ConfigError: the sparsity parameters do not fit the model.
    """
    cache, row = solo_row(
        model,
        prompt=prompt,
        first_token=first_token,
        sparsity=sparsity,
        max_tokens=max_tokens,
    )
    runner = DecodeRunner(model, cache, attention=attention)
    steps: list[dict[str, Any]] = []
    earlier: dict[int, Choice] = {}
    for _ in range(max_tokens - 1):
        trace = PageTrace(row)
        position, attended, dense = row.position, row.attended, row.dense
        runner.step([row], observer=trace)
        steps.append(
            {
                "position": position,
                "layers": _by_name(trace.pages),
                "unit": _by_name(trace.units),
                "refreshed": trace.refreshed,
                "churn": {
                    str(layer): churn(earlier[layer], choice)
                    for layer, choice in trace.choices.items()
                    if layer in earlier
                },
                "attended": row.attended - attended,
                "dense": row.dense - dense,
            }
        )
        earlier = trace.choices
    return {
        "policy": row.policy.name,
        "roles": [role.value for role in row.row_policy.roles],
        "token_ids": list(row.generated),
        "steps": steps,
    }


def _by_name(layers: dict[int, Any]) -> dict[str, Any]:
    """JSON has names for keys."""
    return {str(layer): value for layer, value in layers.items()}

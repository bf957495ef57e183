"""Decodes one prompt without servers, by the engine's path, and tells which pages layers read."""

from typing import Any

from decode_service.engine.attention import DecodeAttention
from decode_service.engine.row_step import KvRead
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import Sequence
from decode_service.engine.solo import PromptTensors, solo_row
from shared.kv.geometry import pages_for
from shared.model.transformer import Transformer
from shared.types.methods import SparsityParams


class PageTrace:
    """A step observer that keeps the logical pages read by each layer of one row.

    Args:
        row: the row to watch.
    """

    def __init__(self, row: Sequence) -> None:
        self._row = row
        self.pages: dict[str, list[int]] = {}

    def layer_read(self, row: Sequence, *, layer: int, read: KvRead) -> None:
        """Keeps one layer's pages."""
        if row is not self._row:
            return
        every_page = list(range(pages_for(read.slots)))
        pages = every_page if read.logical_P is None else read.logical_P.tolist()
        self.pages[str(layer)] = pages


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

    Keys: token_ids (begins with the first token), steps (position of the fed token, layers: logical
    pages that each layer read in its own slot order, attended and dense token-layers).

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
    for _ in range(max_tokens - 1):
        trace = PageTrace(row)
        position, attended, dense = row.position, row.attended, row.dense
        runner.step([row], observer=trace)
        steps.append(
            {
                "position": position,
                "layers": trace.pages,
                "attended": row.attended - attended,
                "dense": row.dense - dense,
            }
        )
    return {"token_ids": list(row.generated), "steps": steps}

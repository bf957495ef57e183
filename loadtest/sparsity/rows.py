"""Many rows that continue one prompt in one page cache: the prompt's pages are there once.

A row's table begins with the prompt's full pages, which nobody writes again, and goes on with pages
of its own; a prompt's partial last page is copied into the first of these. So a step of all arms
costs one pass over the weights, and differences between arms are differences in what they read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from decode_service.engine import sequence as rows
from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.kv_cache import (
    GroupPages,
    LengthGroup,
    PagedKvCache,
    SequencePages,
)
from decode_service.engine.runner import Computed, DecodeRunner, StepObserver
from decode_service.engine.solo import GREEDY, PromptTensors
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from loadtest.sparsity.arms import Arm
from loadtest.sparsity.records import ArmFact
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.methods import PruningParams, SparsityParams
from shared.types.sampling import StopConditions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowBatch:
    """Rows of one prompt, and the engine's runner over them."""

    runner: DecodeRunner
    """Steps them."""
    rows: list[rows.Sequence]
    """One for each of the parameters that they were made with, in that order."""

    def forward(self, *, observer: StepObserver | None = None) -> Computed:
        """Feeds every row's last token; rows move on when the result is accepted."""
        return self.runner.forward(self.rows, observer=observer)


def row_batch(
    model: Transformer,
    prompt: PromptTensors,
    *,
    params: Sequence[SparsityParams | None],
    first_token: int,
    room: int,
) -> RowBatch:
    """Rows that hold a prompt and are about to be fed `first_token`.

    Args:
        model: the decoder.
        prompt: the prompt's KV.
        params: what each row reads; None: everything.
        first_token: token that follows the prompt.
        room: tokens of KV that each row may add.

    Raises:
        ManifestError: the prompt's tensors contradict each other.
        ConfigError: a row's parameters do not fit the model.
    """
    slots = (prompt.keys_values[0][0].shape[0], prompt.keys_values[-1][0].shape[0])
    own = pages_for(room + PAGE_SIZE)
    cache = _cache(model, prompt, slots=slots, own_pages=own * len(params))
    held = _written(cache, prompt, slots=slots)
    layouts = tuple(
        KvLayout.from_spec(
            spec,
            prompt.positions.get(index),
            prompt_tokens=prompt.prompt_tokens,
            num_kv_heads=model.config.num_kv_heads,
        )
        for index, spec in enumerate(prompt.layouts)
    )
    made = [
        rows.Sequence(
            key=HandoffKey(f"arm-{index}"),
            prompt=rows.PromptKv(
                pages=_continued(cache, held, slots=slots, room=own * PAGE_SIZE),
                layouts=layouts,
                layer_layouts=prompt.layer_layouts,
                whole_layers=cache.whole_layers,
                prompt_tokens=prompt.prompt_tokens,
            ),
            policy=policy_for(own_params, num_layers=model.config.num_layers),
            num_heads=model.config.num_heads,
            num_kv_heads=model.config.num_kv_heads,
            sampling=GREEDY,
            stop=StopConditions(max_tokens=room + 1),
            generated=[first_token],
        )
        for index, own_params in enumerate(params)
    ]
    return RowBatch(runner=DecodeRunner(model, cache, attention=TorchDecodeAttention()), rows=made)


def _cache(
    model: Transformer, prompt: PromptTensors, *, slots: tuple[int, int], own_pages: int
) -> PagedKvCache:
    """Room for the prompt once and for the rows' own pages."""
    front, rest = (pages_for(held) + own_pages for held in slots)
    return PagedKvCache(
        model.geometry(),
        whole_layers=_whole_layers(prompt),
        pages_front=front,
        pages_rest=rest,
        device=model.device,
    )


def _written(
    cache: PagedKvCache, prompt: PromptTensors, *, slots: tuple[int, int]
) -> SequencePages:
    """The prompt's pages, filled."""
    held = cache.reserve(front_tokens=slots[0], rest_tokens=slots[1])
    assert held is not None, "the cache was sized for the prompt"
    for layer, (keys_NGD, values_NGD) in enumerate(prompt.keys_values):
        cache.write_prompt(held, layer=layer, keys_NGD=keys_NGD, values_NGD=values_NGD)
    return held


def arm_facts(
    arms: Sequence[Arm], own: Sequence[rows.Sequence], *, run: int, pruning: PruningParams | None
) -> list[ArmFact]:
    """What each arm is, with the roles that the layers of its own row took."""
    return [
        arm.fact(run=run, roles=row.row_policy.roles, pruning=pruning)
        for arm, row in zip(arms, own, strict=True)
    ]


def row_bytes(model: Transformer, *, room: int) -> int:
    """KV memory of one row beside the prompt."""
    config = model.config
    token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * model.dtype.itemsize
    return pages_for(room + PAGE_SIZE) * PAGE_SIZE * token


def _continued(
    cache: PagedKvCache, prompt: SequencePages, *, slots: tuple[int, int], room: int
) -> SequencePages:
    """A row's pages: the prompt's full ones, and fresh ones that begin with its partial page."""
    fresh = cache.reserve(front_tokens=room, rest_tokens=room)
    assert fresh is not None, "the cache was sized for all rows"
    return SequencePages(
        front=_joined(cache, LengthGroup.FRONT, prompt.front, fresh.front, slots=slots[0]),
        rest=_joined(cache, LengthGroup.REST, prompt.rest, fresh.rest, slots=slots[1]),
    )


def _joined(
    cache: PagedKvCache,
    group: LengthGroup,
    prompt: GroupPages,
    fresh: GroupPages,
    *,
    slots: int,
) -> GroupPages:
    full, tail = divmod(slots, PAGE_SIZE)
    if tail and prompt.pages:
        memory = cache.pools[group].memory
        memory[:, :, fresh.pages[0], :tail] = memory[:, :, prompt.pages[full], :tail]
    pages = (*prompt.pages[:full], *fresh.pages)
    in_one_run = bool(pages) and pages == tuple(range(pages[0], pages[0] + len(pages)))
    return GroupPages(
        pages=pages,
        start=pages[0] if in_one_run else None,
        table=torch.tensor(pages, dtype=torch.int64, device=cache.device),
    )


def _whole_layers(prompt: PromptTensors) -> int:
    """Leading layers that hold the whole prompt; the first layout is the identity."""
    pruned = [layer for layer, layout in enumerate(prompt.layer_layouts) if layout != 0]
    return pruned[0] if pruned else len(prompt.layer_layouts)

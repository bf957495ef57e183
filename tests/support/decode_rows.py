"""Builders of decode rows: prompts with any layout in a page cache, without a prefill service."""

import itertools
import random

import torch

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.kv.pool import PagePool
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import LayoutSpec, PositionKind
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams, StopConditions
from tests.reference.delta_slow import SlowPrompt, keep_positions, slow_prefill

GREEDY = SamplingParams(temperature=0.0, logprobs=2)
WHOLE = 2
"""Layers that hold the whole prompt in the rows built here."""
LP = 3
"""Last layer with positions of its own in the `layer` and `head` layouts."""
LAYOUT_MODES = ("identity", "shared", "layer", "head")
_numbers = itertools.count()


def make_cache(
    model: Transformer, *, pages: int = 64, whole_layers: int = WHOLE, poison: bool = True
) -> PagedKvCache:
    """A page cache whose free pages are NaN."""
    return PagedKvCache(
        model.geometry(),
        whole_layers=whole_layers,
        pages_front=pages,
        pages_rest=pages,
        poison=poison,
    )


def make_runner(model: Transformer, cache: PagedKvCache) -> DecodeRunner:
    """The engine's runner on the torch backend."""
    return DecodeRunner(model, cache, attention=TorchDecodeAttention())


def make_prompt(
    model: Transformer, *, mode: str, tokens: int, kept: int, seed: int = 0
) -> tuple[SlowPrompt, list[int]]:
    """Random tokens; pruned layers keep `kept` random positions, the first and the last too."""
    generator = random.Random(seed)
    ids = [generator.randrange(2, model.config.vocab_size) for _ in range(tokens)]
    with torch.inference_mode():
        full, _ = slow_prefill(model, ids)
    if mode == "identity":
        return full, ids
    heads = model.config.num_kv_heads

    def draw() -> list[int]:
        middle = generator.sample(range(1, tokens - 1), kept - 2)
        return [0, *sorted(middle), tokens - 1]

    common = draw()
    positions = []
    for layer in range(model.config.num_layers):
        if layer < WHOLE:
            positions.append([list(range(tokens))] * heads)
        elif mode == "shared" or layer > LP:
            positions.append([common] * heads)
        elif mode == "layer":
            positions.append([draw()] * heads)
        else:
            positions.append([draw() for _ in range(heads)])
    return keep_positions(full, positions), ids


def layouts_of(prompt: SlowPrompt) -> tuple[tuple[KvLayout, ...], tuple[int, ...]]:
    """Distinct layouts of a prompt in order of use, the identity first, and each layer's."""
    distinct: list[list[list[int]]] = [[list(range(prompt.prompt_tokens))]]
    layer_layouts = []
    for heads in prompt.positions:
        rows = [heads[0]] if all(head == heads[0] for head in heads) else heads
        if rows not in distinct:
            distinct.append(rows)
        layer_layouts.append(distinct.index(rows))
    layouts = []
    for index, rows in enumerate(distinct):
        kind = PositionKind.SHARED if len(rows) == 1 else PositionKind.PER_HEAD
        spec = LayoutSpec(kind=PositionKind.IDENTITY if index == 0 else kind, slots=len(rows[0]))
        layouts.append(
            KvLayout.from_spec(
                spec,
                None if index == 0 else torch.tensor(rows, dtype=torch.int32),
                prompt_tokens=prompt.prompt_tokens,
                num_kv_heads=len(prompt.positions[0]),
            )
        )
    return tuple(layouts), tuple(layer_layouts)


def place(
    model: Transformer,
    cache: PagedKvCache,
    prompt: SlowPrompt,
    *,
    first_token: int,
    sparsity: SparsityParams | None,
    max_tokens: int = 64,
    sampling: SamplingParams = GREEDY,
    force_sparse: bool = False,
    traced: bool = False,
) -> Sequence:
    """Reserves pages, writes the prompt into them, and gives the row."""
    layouts, layer_layouts = layouts_of(prompt)
    pages = cache.reserve(
        front_tokens=prompt.keys[0].shape[0] + max_tokens,
        rest_tokens=prompt.keys[-1].shape[0] + max_tokens,
    )
    assert pages is not None
    for layer, (keys, values) in enumerate(zip(prompt.keys, prompt.values, strict=True)):
        cache.write_prompt(pages, layer=layer, keys_NGD=keys, values_NGD=values)
    return Sequence(
        key=HandoffKey(f"row-{next(_numbers)}"),
        prompt=PromptKv(
            pages=pages,
            layouts=layouts,
            layer_layouts=layer_layouts,
            whole_layers=cache.whole_layers,
            prompt_tokens=prompt.prompt_tokens,
        ),
        policy=policy_for(sparsity, num_layers=model.config.num_layers),
        num_heads=model.config.num_heads,
        num_kv_heads=model.config.num_kv_heads,
        force_sparse=force_sparse,
        sampling=sampling,
        stop=StopConditions(max_tokens=max_tokens),
        generated=[first_token],
        traced=traced,
    )


def advance(runner: DecodeRunner, rows: list[Sequence]) -> torch.Tensor:
    """One greedy step by logits, [B, V], where a test wants more than tokens."""
    computed = runner.forward(rows)
    computed.accept(computed.logits_BV.argmax(dim=-1).tolist())
    return computed.logits_BV


def scatter_pages(pool: PagePool) -> list[int]:
    """Leaves only every third page of a pool free, so that rows get no contiguous run."""
    held = pool.allocate(pool.num_pages)
    assert held is not None
    free = held[::3]
    pool.free(free)
    return [page for page in held if page not in free]

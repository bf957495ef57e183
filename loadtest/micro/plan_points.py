"""Times that a plan is simulated with: prompts by length and keep rate, steps by batch and context.

Shapes: G KV heads, D head size, N slots.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decode_service.engine import sequence as rows
from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.kv_cache import PagedKvCache, SequencePages
from decode_service.engine.runner import DecodeRunner
from decode_service.engine.sizing import CacheSize
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from loadtest.micro.prompt import real_prompt
from prefill_service.engine.plan import PromptPlan, plan_prompt
from prefill_service.engine.runner import DEFAULT_CHUNK_TOKENS, PrefillRunner
from shared.errors import ConfigError
from shared.kv.geometry import pages_for
from shared.model.probe import probe_attention
from shared.model.weights import LoadedModel
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import LayoutSpec, PositionKind
from shared.types.methods import SparsityParams
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions

PARTS = 8
"""Equal parts of a prompt's KV whose moments are noted."""

_WARM_STEPS = 2
_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPrompt:
    """A prompt's median run."""

    tokens: int
    """Prompt tokens."""
    keep_rate: float
    """1: nothing is pruned."""
    seconds: float
    """Compute time."""
    ready: tuple[float, ...]
    """Shares of it after which each further eighth of the KV bytes was final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """A decode step's median."""

    policy: str
    """`dense` or `delta`."""
    batch: int
    """Rows."""
    context: int
    """KV slots of a row in each layer."""
    seconds: float
    """Time of a step."""


class _Moments:
    """An observer that notes when bytes are final and keeps none of them."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._noted: list[tuple[float, int]] = []

    def settled(self, plan: PromptPlan) -> None:
        """Nothing to note."""

    def kv_final(
        self, *, layer: int, first_slot: int, keys_NGD: Tensor, values_NGD: Tensor
    ) -> None:
        """Notes a block."""
        del layer, first_slot
        seconds = time.perf_counter() - self.began
        self._noted.append((seconds, keys_NGD.nbytes + values_NGD.nbytes))

    def positions_final(self, *, layout: int, positions_RN: Tensor) -> None:
        """Positions are few bytes."""

    def progress(self, *, done_tokens: int) -> None:
        """Nothing to note."""

    def ready(self, seconds: float) -> tuple[float, ...]:
        """Shares of `seconds` after which each part of the bytes was final."""
        total = sum(nbytes for _, nbytes in self._noted)
        found: list[float] = []
        done = 0
        for moment, nbytes in self._noted:
            done += nbytes
            while len(found) < PARTS and done * PARTS >= total * (len(found) + 1):
                found.append(min(1.0, moment / seconds))
        return tuple(found)


def time_prompts(
    loaded: LoadedModel,
    *,
    lengths: Sequence[int],
    keep_rates: Sequence[float],
    repeats: int,
    progress: Callable[[str], None],
) -> list[TimedPrompt]:
    """Runs every length at every keep rate, rates alternating; pruned ones even when short.

    Raises:
        ConfigError: a length does not fit the model's context.
    """
    found = []
    for tokens in lengths:
        token_ids = real_prompt(loaded, tokens=tokens)
        runs: dict[float, list[tuple[float, tuple[float, ...]]]] = {r: [] for r in keep_rates}
        for repeat in range(repeats + 1):
            for rate in keep_rates:
                timed = one_prompt(loaded, token_ids, rate)
                if repeat:  # the first run warms up
                    runs[rate].append(timed)
        for rate, timings in runs.items():
            seconds, ready = sorted(timings)[len(timings) // 2]
            found.append(TimedPrompt(tokens=tokens, keep_rate=rate, seconds=seconds, ready=ready))
            progress(f"prefill of {tokens} tokens, keep {rate:g}: {seconds:.4f} s")
    return found


def one_prompt(
    loaded: LoadedModel, token_ids: Sequence[int], rate: float
) -> tuple[float, tuple[float, ...]]:
    """Seconds of one run at a keep rate, and the shares after which each part was final."""
    model = loaded.model
    plan = plan_prompt(
        config=model.config,
        geometry=model.geometry(),
        params=replace(loaded.profile.pruning, keep_rate=rate, mass=None, bypass_below=0),
        options=RequestOptions(),
        prompt_tokens=len(token_ids),
    )
    runner = PrefillRunner(
        model,
        attention=probe_attention(model.device).backend,
        chunk_tokens=DEFAULT_CHUNK_TOKENS,
    )
    _wait_for(model.device)
    moments = _Moments()
    runner.run(token_ids=token_ids, plan=plan, observer=moments, stop=lambda: False)
    _wait_for(model.device)
    seconds = time.perf_counter() - moments.began
    return seconds, moments.ready(seconds)


def time_steps(  # noqa: PLR0913 - a flag of the command each
    loaded: LoadedModel,
    size: CacheSize,
    *,
    policies: Sequence[str],
    batches: Sequence[int],
    contexts: Sequence[int],
    steps: int,
    progress: Callable[[str], None],
) -> list[TimedStep]:
    """Steps every batch at every context with every policy, over a cache of the worker's size.

    Where the cache has no room for the whole batch, rows share pages: as many bytes are read.

    Raises:
        ConfigError: a context does not fit the cache or the model.
    """
    _check_room(loaded, size, context=max(contexts), steps=steps)
    found = []
    for context in contexts:
        cache, pages = filled_rows(loaded, size, context=context, batch=max(batches), steps=steps)
        for batch in batches:
            for policy in policies:
                seconds = one_batch(
                    loaded, cache, pages[:batch], context=context, policy=policy, steps=steps
                )
                found.append(
                    TimedStep(policy=policy, batch=batch, context=context, seconds=seconds)
                )
                progress(f"step of {batch} x {context}, {policy}: {1000 * seconds:.2f} ms")
    return found


def filled_rows(
    loaded: LoadedModel, size: CacheSize, *, context: int, batch: int, steps: int
) -> tuple[PagedKvCache, list[SequencePages]]:
    """A cache with content, and the pages of `batch` rows in it with room for `steps` steps.

    Raises:
        ConfigError: the context does not fit the cache or the model.
    """
    _check_room(loaded, size, context=context, steps=steps)
    cache = _filled_cache(loaded, size, context=context, batch=batch, steps=steps)
    return cache, list(_pages_of(cache, context + _WARM_STEPS + steps, rows_wanted=batch))


def _check_room(loaded: LoadedModel, size: CacheSize, *, context: int, steps: int) -> None:
    longest = context + _WARM_STEPS + steps
    room = min(size.unpruned_tokens, loaded.model.config.max_position)
    if longest > room:
        raise ConfigError(
            f"a row of {longest} tokens does not fit: the worker's cache and the model take "
            f"{room}; give shorter contexts or more --kv-bytes"
        )


def one_batch(
    loaded: LoadedModel,
    cache: PagedKvCache,
    pages: Sequence[SequencePages],
    *,
    context: int,
    policy: str,
    steps: int,
) -> float:
    """Median seconds of a step of these rows, each as long as at first."""
    sparsity = loaded.profile.sparsity if policy == "delta" else None
    batch = [_row(loaded, cache, each, context=context, sparsity=sparsity) for each in pages]
    runner = DecodeRunner(loaded.model, cache, attention=TorchDecodeAttention())
    for _ in range(_WARM_STEPS):
        runner.step(batch)
    taken = []
    for _ in range(steps):
        _wait_for(loaded.model.device)
        began = time.perf_counter()
        runner.step(batch)
        _wait_for(loaded.model.device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _filled_cache(
    loaded: LoadedModel, size: CacheSize, *, context: int, batch: int, steps: int
) -> PagedKvCache:
    """A cache of the worker's size, or of what the batch needs; no two pages are the same."""
    wanted = batch * pages_for(context + _WARM_STEPS + steps)
    cache = PagedKvCache(
        loaded.model.geometry(),
        whole_layers=size.whole_layers,
        pages_front=min(size.pages_front, wanted),
        pages_rest=min(size.pages_rest, wanted),
        device=loaded.model.device,
    )
    generator = torch.Generator(device=loaded.model.device).manual_seed(0)
    for pool in cache.pools.values():
        pool.memory.normal_(generator=generator)
    return cache


def _pages_of(cache: PagedKvCache, tokens: int, *, rows_wanted: int) -> Iterator[SequencePages]:
    held: list[SequencePages] = []
    for number in range(rows_wanted):
        own = cache.reserve(front_tokens=tokens, rest_tokens=tokens)
        if own is not None:
            held.append(own)
        yield held[-1] if own is not None else held[number % len(held)]


def _row(
    loaded: LoadedModel,
    cache: PagedKvCache,
    pages: SequencePages,
    *,
    context: int,
    sparsity: SparsityParams | None,
) -> rows.Sequence:
    config = loaded.model.config
    layout = KvLayout.from_spec(
        LayoutSpec(kind=PositionKind.IDENTITY, slots=context),
        None,
        prompt_tokens=context,
        num_kv_heads=config.num_kv_heads,
    )
    return rows.Sequence(
        key=HandoffKey("plan"),
        prompt=rows.PromptKv(
            pages=pages,
            layouts=(layout,),
            layer_layouts=(0,) * config.num_layers,
            whole_layers=cache.whole_layers,
            prompt_tokens=context,
        ),
        policy=policy_for(sparsity, num_layers=config.num_layers),
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        sampling=_GREEDY,
        stop=StopConditions(max_tokens=config.max_position),
        generated=[0],
    )


def _wait_for(device: torch.device) -> None:
    """Kernels run beside the host: a time ends when they have."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)

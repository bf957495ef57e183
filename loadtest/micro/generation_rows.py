"""Rows of a whole generation; pages for all of it are granted beforehand, as a worker does."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from decode_service.engine.handoffs import Reservation
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.sequence import Sequence
from decode_service.engine.sizing import size_cache
from loadtest.micro.worker_room import RequestSize, WorkerRoom
from shared.errors import ConfigError, InternalError
from shared.kv.geometry import PAGE_SIZE, pages_for
from shared.model.config import ModelConfig
from shared.model.profile import load_profile
from shared.model.shapes import shape_named
from shared.model.transformer import Transformer
from shared.types.methods import PruningParams, SparsityParams

DENSE, DELTA = "dense", "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """A batch of equal rows, from a short prompt to a long context."""

    config: ModelConfig
    """Model."""
    batch: int
    """Rows."""
    prompt_tokens: int
    """Tokens of a row before the first step."""
    context: int
    """Tokens of a row after the last step."""
    pruning: PruningParams
    """Says which layers a worker keeps pages of their own for; no row is pruned."""
    sparsity: SparsityParams
    """What the second arm reads."""

    def __post_init__(self) -> None:
        longest = self.config.max_position
        if self.batch < 1 or not 1 <= self.prompt_tokens < self.context < longest:
            raise ConfigError(
                f"{self.batch} rows from {self.prompt_tokens} to {self.context} tokens: at least "
                f"one row, a prompt of at least one token, and an end behind it and below the "
                f"model's {longest} positions"
            )

    @property
    def steps(self) -> int:
        """Decode steps."""
        return self.context - self.prompt_tokens

    @property
    def budget_tokens(self) -> int:
        """Contexts up to here are read whole by both arms."""
        return self.sparsity.page_budget * PAGE_SIZE


def generation_of(shape: str, *, batch: int, prompt_tokens: int, context: int) -> GenerationPlan:
    """A batch of a model's shape, with the layers and budgets of its shipped profile.

    Args:
        shape: name of the model's shape.
        batch: rows.
        prompt_tokens: tokens of a row before the first step.
        context: tokens of a row after the last step.

    Raises:
        ConfigError: no such shape, or sizes that do not fit.
    """
    config = shape_named(shape)
    profile = load_profile(config=config)
    return GenerationPlan(
        config=config,
        batch=batch,
        prompt_tokens=prompt_tokens,
        context=context,
        pruning=profile.pruning,
        sparsity=profile.sparsity,
    )


class GenerationRows:
    """A worker's memory for one batch, and the batch's rows.

    Args:
        model: the decoder.
        plan: sizes.
        copies: rows are so many times the batch.
    """

    arms = (DENSE, DELTA)
    """Reads everything, reads chosen pages."""

    def __init__(self, model: Transformer, plan: GenerationPlan, *, copies: int = 1) -> None:
        self.plan = plan
        self._model = model
        self._count = copies * plan.batch
        pages = self._count * pages_for(plan.context)
        size = size_cache(
            model.geometry(),
            plan.pruning,
            kv_bytes=pages * model.geometry().page_bytes * model.config.num_layers,
        )
        self._room = WorkerRoom(model, size, max_model_len=plan.context + 1)
        noise = torch.Generator(model.device).manual_seed(4)
        for pool in self.cache.pools.values():
            pool.memory.normal_(generator=noise)
        drawn = torch.Generator().manual_seed(3)
        tokens = torch.randint(2, model.config.vocab_size, (plan.batch,), generator=drawn)
        self._first_tokens = tokens.tolist() * copies
        self._rounds = 0

    @property
    def cache(self) -> PagedKvCache:
        """The pages; noise lies where nothing was written."""
        return self._room.cache

    @property
    def kv_bytes(self) -> int:
        """Memory of all pages."""
        return self._room.pool_bytes

    @contextmanager
    def rows(self, arm: str, *, context: int | None = None) -> Iterator[list[Sequence]]:
        """Fresh rows of an arm, whose pages are given back at the end.

        Args:
            arm: its name.
            context: tokens that they hold; None: the prompt alone.
        """
        granted = self._grant()
        sparsity = self.plan.sparsity if arm == DELTA else None
        try:
            yield [
                self._room.row(each, sparsity=sparsity, first_token=token, prompt_tokens=context)
                for each, token in zip(granted, self._first_tokens, strict=True)
            ]
        finally:
            for each in granted:
                self._room.leave(each)
            self._room.cache.check_idle()

    def _grant(self) -> list[Reservation]:
        plan = self.plan
        size = RequestSize(
            prompt_tokens=plan.prompt_tokens,
            kept_tokens=plan.prompt_tokens,
            max_new_tokens=plan.steps + 1,
        )
        self._rounds += 1
        granted = []
        for number in range(self._count):
            each = self._room.ask(f"{self._rounds}-{number}", size)
            if not isinstance(each, Reservation):
                raise InternalError(
                    f"row {number} got no pages: {each.reason.value}; pages of earlier rows were "
                    "not given back; report this"
                )
            # All rows hold one prompt, as one text sent many times would be.
            self._room.fill(each, generator=torch.Generator(self._model.device).manual_seed(5))
            granted.append(each)
        return granted

"""Batches of any model's shape, beside those that the documents name."""

import argparse
from collections.abc import Mapping

from loadtest.micro.step_rows import GROWTH
from loadtest.micro.step_shapes import CASES, StepCase
from shared.errors import ConfigError
from shared.model.profile import load_profile
from shared.model.shapes import MODEL_SHAPES, shape_named

_BATCH, _CONTEXT, _KEEP_RATE = 16, 16_384, 0.2


def case_of(
    shape: str,
    *,
    batch: int = _BATCH,
    context: int | None = None,
    keep_rate: float | None = _KEEP_RATE,
) -> StepCase:
    """A batch of a model's shape, with the layers and budgets of its shipped profile.

    Args:
        shape: name of the model's shape.
        batch: rows.
        context: original tokens of a row; None: 16,384, or what the model has room for.
        keep_rate: share of the prompt that pruned arms hold; None leaves them out.

    Raises:
        ConfigError: no such shape, or a size that it does not have.
    """
    config = shape_named(shape)
    most = config.max_position - GROWTH
    context = min(_CONTEXT, most) if context is None else context
    if batch < 1 or not 1 <= context <= most:
        raise ConfigError(
            f"{batch} x {context} tokens of {shape}: at least one row, and 1 to {most} tokens, "
            f"which leaves {GROWTH} of its {config.max_position} positions to the steps"
        )
    if keep_rate is not None and not 0 < keep_rate < 1:
        raise ConfigError(f"a keep rate of {keep_rate:g} prunes nothing: give one between 0 and 1")
    profile = load_profile(config=config)
    sparsity, pruning = profile.sparsity, profile.pruning
    return StepCase(
        config=config,
        batch=batch,
        context=context,
        full_layers=sparsity.full_layers,
        keep_rate=keep_rate,
        budget=sparsity.page_budget,
        recency=sparsity.recency_pages,
        whole_layers=min(pruning.deferred_layers, pruning.pruning_layer + 1),
    )


def named_cases(
    shapes: str, *, batch: int | None = None, contexts: str = ""
) -> Mapping[str, StepCase]:
    """Cases by name: those of the documents without `shapes`, else one a shape and context.

    Args:
        shapes: names of models' shapes, separated by commas; may be empty.
        batch: rows; None: what `case_of` takes.
        contexts: original tokens of a row, separated by commas; empty: what `case_of` takes.

    Raises:
        ConfigError: no such list, sizes without a shape, or see `case_of`.
    """
    names = [name for each in shapes.split(",") if (name := each.strip())]
    if not names and (shapes or contexts or batch is not None):
        raise ConfigError(
            "--batch and --context are sizes of a case with --shape: name a shape, or leave them "
            "out for the cases of the documents, which have their own"
        )
    tokens = [_whole(part) for part in contexts.split(",")] if contexts else [None]
    cases = [
        (name, case_of(name, batch=_BATCH if batch is None else batch, context=context))
        for name in names
        for context in tokens
    ]
    return {f"{name} {case.batch} x {case.context}": case for name, case in cases} or CASES


def add_case_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `named_cases`."""
    parser.add_argument(
        "--shape", default="", help=f"cases of these shapes instead: {', '.join(MODEL_SHAPES)}"
    )
    parser.add_argument("--batch", type=int, help=f"rows, with --shape; {_BATCH}")
    parser.add_argument(
        "--context", default="", help="tokens of a row, a list, with --shape; 16384 or fewer"
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is no context: write whole numbers, separated by commas"
        ) from None

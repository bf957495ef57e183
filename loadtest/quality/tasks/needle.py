"""The needle grid (kind x length x depth) and the needle mixture."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from random import Random
from types import MappingProxyType

from loadtest.quality.tasks.niah import Budget, Haystack, NiahTask, niah_sample
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Sample
from shared.errors import ConfigError

NEEDLE_TASKS: Mapping[str, NiahTask] = MappingProxyType(
    {
        "niah_noise_1key": NiahTask(Haystack.NOISE),
        "niah_noise_4keys": NiahTask(Haystack.NOISE, num_keys=4),
        "niah_prose_1key": NiahTask(Haystack.PROSE),
        "niah_prose_4keys": NiahTask(Haystack.PROSE, num_keys=4),
    }
)
LONG_VALUE_TASKS: Mapping[str, NiahTask] = MappingProxyType(
    {
        "niah_noise_uuid": NiahTask(Haystack.NOISE, value="uuid"),
        "niah_prose_uuid": NiahTask(Haystack.PROSE, value="uuid"),
    }
)
"""Values of dozens of tokens: the last of them are lost by rankings that keep the needles above."""
MIXTURE_LENGTHS = (1024, 2048, 4096, 7168)
FIVE_DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

_NEW_TOKENS = MappingProxyType({"number": 24, "uuid": 64})
_TASKS = MappingProxyType({**NEEDLE_TASKS, **LONG_VALUE_TASKS})


def needle_sample(
    writer: PromptWriter, *, task: str, length: int, depth: float, seed: int
) -> Sample:
    """One cell of the grid.

    Args:
        writer: writes for the model.
        task: a name in `NEEDLE_TASKS` or `LONG_VALUE_TASKS`.
        length: tokens of the prompt, at most; a few less.
        depth: where the asked needle stands, 0 to 1.
        seed: number of the sample in its cell.

    Raises:
        ConfigError: unknown task, impossible depth or too short a prompt.
    """
    if task not in _TASKS:
        raise ConfigError(f"no needle task {task!r}: choose among {', '.join(_TASKS)}")
    if not 0.0 <= depth <= 1.0:
        raise ConfigError(f"a depth of {depth} is outside the text: choose 0 (start) to 1 (end)")
    return niah_sample(
        writer,
        name=task,
        task=_TASKS[task],
        budget=Budget(
            length=length, prompt_tokens=length, new_tokens=_NEW_TOKENS[_TASKS[task].value]
        ),
        depth=depth,
        seed=seed,
    )


def needle_grid(
    writer: PromptWriter,
    *,
    tasks: Sequence[str] = tuple(NEEDLE_TASKS),
    lengths: Sequence[int],
    depths: Sequence[float] = FIVE_DEPTHS,
    seeds: Sequence[int] = (0,),
) -> Iterator[Sample]:
    """Every combination, the last argument fastest; made one by one."""
    for task, length, depth, seed in product(tasks, lengths, depths, seeds):
        yield needle_sample(writer, task=task, length=length, depth=depth, seed=seed)


def needle_mixture(
    writer: PromptWriter,
    *,
    count: int,
    tasks: Sequence[str] = tuple(NEEDLE_TASKS),
    lengths: Sequence[int] = MIXTURE_LENGTHS,
    seed: int = 0,
) -> Iterator[Sample]:
    """`count` samples at random depths; tasks and lengths take turns, so all are equally frequent.

    A larger count begins with the samples of a smaller one.
    """
    yield from islice(_endless_mixture(writer, tasks=tasks, lengths=lengths, seed=seed), count)


def _endless_mixture(
    writer: PromptWriter, *, tasks: Sequence[str], lengths: Sequence[int], seed: int
) -> Iterator[Sample]:
    round_number = seed
    while True:
        for task, length in product(tasks, lengths):
            depth = round(Random(f"depth/{task}/{length}/{round_number}").random(), 3)
            yield needle_sample(writer, task=task, length=length, depth=depth, seed=round_number)
        round_number += 1

"""RULER's eleven synthetic tasks by name.

Left out are its two question-answering tasks: they need downloaded data sets. The structure is
RULER's, the instructions are worded anew, and prose comes from Python's help instead of essays, so
scores compare between methods here and not with published ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from types import MappingProxyType

from loadtest.quality.tasks.counting import common_words_sample, frequent_words_sample
from loadtest.quality.tasks.niah import Budget, Haystack, NiahTask, niah_sample
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Sample
from loadtest.quality.tasks.tracing import variable_tracking_sample
from shared.errors import ConfigError

_NIAH_NEW_TOKENS = 128

_NIAH: Mapping[str, NiahTask] = MappingProxyType(
    {
        "single_1": NiahTask(Haystack.NOISE),
        "single_2": NiahTask(Haystack.PROSE),
        "single_3": NiahTask(Haystack.PROSE, value="uuid"),
        "multikey_1": NiahTask(Haystack.PROSE, num_keys=4),
        "multikey_2": NiahTask(Haystack.NEEDLES),
        "multikey_3": NiahTask(Haystack.NEEDLES, key="uuid", value="uuid"),
        "multivalue": NiahTask(Haystack.PROSE, num_values=4),
        "multiquery": NiahTask(Haystack.PROSE, num_keys=4, num_queries=4),
    }
)


def ruler_sample(writer: PromptWriter, *, task: str, length: int, seed: int) -> Sample:
    """One question of a RULER task.

    Args:
        writer: writes for the model.
        task: a name in `RULER_TASKS`.
        length: tokens of the prompt and of the longest answer together.
        seed: number of the sample.

    Raises:
        ConfigError: unknown task, or the length has no room for it.
    """
    if task not in RULER_TASKS:
        raise ConfigError(f"no RULER task {task!r}: choose among {', '.join(RULER_TASKS)}")
    return RULER_TASKS[task](writer, length=length, seed=seed)


def ruler_samples(
    writer: PromptWriter,
    *,
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int],
    seeds: Sequence[int] = (0,),
) -> Iterator[Sample]:
    """Every combination, the last argument fastest, all tasks by default; made one by one."""
    chosen = tuple(RULER_TASKS) if tasks is None else tasks
    for task, length, seed in product(chosen, lengths, seeds):
        yield ruler_sample(writer, task=task, length=length, seed=seed)


def _retrieval(name: str, writer: PromptWriter, *, length: int, seed: int) -> Sample:
    return niah_sample(
        writer,
        name=name,
        task=_NIAH[name],
        budget=Budget(
            length=length,
            prompt_tokens=length - _NIAH_NEW_TOKENS,
            new_tokens=_NIAH_NEW_TOKENS,
        ),
        depth=None,
        seed=seed,
    )


RULER_TASKS: Mapping[str, Callable[..., Sample]] = MappingProxyType(
    {
        **{name: partial(_retrieval, name) for name in _NIAH},
        "vt": variable_tracking_sample,
        "cwe": common_words_sample,
        "fwe": frequent_words_sample,
    }
)

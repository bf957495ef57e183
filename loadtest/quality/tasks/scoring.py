"""The score of an output: the metric that its sample names, over all references."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from loadtest.quality.tasks.sample import Sample
from loadtest.quality.tasks.text_metrics import (
    class_name,
    code_similarity,
    contains,
    count,
    paragraph_number,
    rouge_l,
    token_f1,
)

METRICS: Mapping[str, Callable[[Sample, str], float]] = MappingProxyType(
    {
        "string_match_all": lambda sample, text: _mean(sample, text, contains),
        "token_f1": lambda sample, text: _best(sample, text, token_f1),
        "rouge_l": lambda sample, text: _best(sample, text, rouge_l),
        "classification": lambda sample, text: max(
            class_name(text, reference, classes=sample.classes) for reference in sample.answers
        ),
        "count": lambda sample, text: _best(sample, text, count),
        "retrieval": lambda sample, text: _best(sample, text, paragraph_number),
        "code_similarity": lambda sample, text: _best(sample, text, code_similarity),
    }
)


def score_output(sample: Sample, output: str) -> float:
    """How right an output is, 0 to 1.

    `string_match_all` is the share of references that the output contains; the other metrics take
    the best reference.
    """
    text = output.lstrip("\n").split("\n")[0] if sample.first_line else output
    return METRICS[sample.metric](sample, text)


def _mean(sample: Sample, text: str, compare: Callable[[str, str], float]) -> float:
    return sum(compare(text, reference) for reference in sample.answers) / len(sample.answers)


def _best(sample: Sample, text: str, compare: Callable[[str, str], float]) -> float:
    return max(compare(text, reference) for reference in sample.answers)

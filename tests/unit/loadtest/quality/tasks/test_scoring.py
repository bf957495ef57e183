"""Which references count, and which part of an output."""

from dataclasses import replace

import pytest

from loadtest.quality.tasks.longbench_tasks import LONGBENCH_TASKS
from loadtest.quality.tasks.sample import Sample, Span
from loadtest.quality.tasks.scoring import METRICS, score_output

SAMPLE = Sample(
    task="t",
    prompt_ids=(1, 2),
    answer_text="x",
    answer_ids=(3,),
    answers=("red", "Blue"),
    question_span=Span(1, 2),
    needle_spans=(),
    depth=None,
    length=2,
    seed=0,
    max_new_tokens=4,
)


def test_all_references_must_be_matched() -> None:
    assert score_output(SAMPLE, "blue and RED") == 1.0
    assert score_output(SAMPLE, "only blue") == 0.5
    assert score_output(SAMPLE, "green") == 0.0


@pytest.mark.parametrize(
    ("metric", "answers", "output", "value"),
    [
        ("token_f1", ("no", "the red car"), "a red car", 1.0),
        ("rouge_l", ("x y", "a b"), "a c", 0.5),
        ("classification", ("City",), "It is City", 1.0),
        ("count", ("3",), "3 or 4", 0.5),
        ("retrieval", ("Paragraph 9",), "Paragraph 9", 1.0),
        ("code_similarity", ("return 1",), "# so\nreturn 1\n", 1.0),
    ],
)
def test_the_best_reference_counts(
    metric: str, answers: tuple[str, ...], output: str, value: float
) -> None:
    sample = replace(SAMPLE, metric=metric, answers=answers, classes=("City", "Other"))
    assert score_output(sample, output) == pytest.approx(value)


def test_only_the_first_line_where_the_task_says_so() -> None:
    output = "\n\nred\nblue"
    assert score_output(SAMPLE, output) == 1.0
    assert score_output(replace(SAMPLE, first_line=True), output) == 0.5


def test_every_metric_that_a_task_names_exists() -> None:
    named = {task.metric for task in LONGBENCH_TASKS.values()}
    assert named | {"string_match_all"} == set(METRICS)

import math

import pytest

from loadtest.quality.store import Fact
from loadtest.quality.summary import (
    KEPT_ANSWERS,
    RULER_AVERAGE,
    Share,
    ahead_at_equal_ttft,
    compare,
    kept_answers,
    not_above_random,
    ranker_table,
    task_scores,
    trials_of,
)
from tests.support.quality_facts import study_facts, timing, trials


def row_of(rows, arm, rate=0.2):
    (row,) = [row for row in rows if (row["arm"], row["rate"]) == (arm, rate)]
    return row


def test_wilson_interval_of_19_in_20():
    low, high = Share(19, 20).interval()
    assert (round(low, 3), round(high, 3)) == (0.764, 0.991)
    assert Share(0, 0).value is None
    assert Share(0, 0).interval() == (0.0, 1.0)


def test_kept_answers_count_only_what_full_answers():
    kept = kept_answers(trials_of(study_facts(), "mixture"))
    assert (kept["claa", 0.2].right, kept["claa", 0.2].of) == (3, 4)
    assert (kept["full", 1.0].right, kept["full", 1.0].of) == (6, 6)


def test_the_table_begins_with_full_and_has_every_figure():
    rows = ranker_table(study_facts())
    assert rows[0]["arm"] == "full"
    row = row_of(rows, "claa")
    assert row["needle"]["2048"]["share"] == pytest.approx(0.6)
    assert row["ruler"] == pytest.approx(0.6)
    assert row["kept_answers"]["share"] == pytest.approx(0.75)
    assert row["spearman"] == pytest.approx(0.5)
    assert row["ttft_ratio"]["4096"]["median"] == 0.6
    assert row["trials"] == 15
    assert row_of(rows, "random")["ttft_ratio"] == {}


def test_the_task_average_weighs_tasks_alike():
    facts = [
        *trials("claa", [1.0, 1.0, 1.0], part="ruler", task="vt"),
        *trials("claa", [0.0], part="ruler", task="cwe"),
    ]
    assert row_of(ranker_table(facts), "claa")["ruler"] == 0.5


def test_a_later_question_leaves_no_first_token_to_compare():
    facts = trials("claa", [1.0], part="ruler", first_token_kl=None)
    assert row_of(ranker_table(facts), "claa")["first_token_kl"] is None


def test_the_question_excluded_is_no_part_of_the_table():
    facts = trials("claa", [1.0], part="needle", protocol="excluded")
    assert ranker_table(facts) == []
    assert len(trials_of(facts, "needle", protocol="excluded")) == 1


def test_who_cannot_beat_random_is_named_task_by_task():
    found = {(row["part"], row["arm"]) for row in not_above_random(study_facts())}
    assert ("mixture", "recency") in found
    assert ("mixture", "claa") not in found
    row = next(row for row in not_above_random(study_facts()) if row["part"] == "needle")
    assert row["full_score"] == pytest.approx(0.8)
    assert (row["wins"], row["losses"], row["p"]) == (0, 0, 1.0)


def test_no_slower_and_better_is_ahead():
    ahead = ahead_at_equal_ttft(study_facts(), of="claa")
    by_answers, by_tasks = [row for row in ahead if row["rate"] == 0.2]
    assert (by_answers["measure"], by_tasks["measure"]) == (KEPT_ANSWERS, RULER_AVERAGE)
    for row, mine, theirs in ((by_answers, 0.75, 1.0), (by_tasks, 0.6, 0.8)):
        assert (row["ahead"]["arm"], row["ahead"]["score"]) == ("snapkv", pytest.approx(theirs))
        assert row["score"] == pytest.approx(mine)
        assert (row["wins"], row["losses"]) == (1, 0)


def test_slower_arms_controls_of_the_oracle_and_full_are_not_ahead():
    facts: list[Fact] = [
        *trials("full", [1, 1], rate=1.0),
        *trials("claa", [1, 0]),
        *trials("slow", [1, 1]),
        *trials("oracle-deferred", [1, 1]),
        timing("full", 1.0, rate=1.0),
        timing("claa", 0.6),
        timing("slow", 0.7),
        timing("oracle-deferred", 0.1),
    ]
    assert ahead_at_equal_ttft(facts, of="claa") == []


def test_the_sign_test_of_eight_wins_and_no_loss():
    both = [*trials("claa", [1.0] * 8), *trials("random", [0.0] * 8)]
    duel = compare(both, ("claa", 0.2), ("random", 0.2))
    assert (duel["wins"], duel["losses"], duel["prompts"]) == (8, 0, 8)
    assert math.isclose(duel["p"], 2 / 2**8)


def test_only_prompts_that_both_saw_are_compared():
    both = [*trials("claa", [1.0] * 3), *trials("random", [0.0] * 2)]
    assert compare(both, ("claa", 0.2), ("random", 0.2))["prompts"] == 2


def test_task_scores_are_means_with_counts():
    rows = task_scores(trials("claa", [1.0, 0.0], part="ruler", task="vt"))
    assert rows == [{"task": "vt", "arm": "claa", "rate": 0.2, "score": 0.5, "prompts": 2}]

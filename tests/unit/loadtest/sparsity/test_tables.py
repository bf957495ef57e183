from dataclasses import replace
from itertools import starmap

import pytest

from loadtest.quality.summary import Share
from loadtest.sparsity.duels import answers, closeness
from loadtest.sparsity.intervals import mean_interval
from loadtest.sparsity.records import (
    ABLATION,
    LONG,
    PRUNED,
    TEACHER,
    WHOLE,
    ArmFact,
    ForcedFact,
    GenerationFact,
    NeedleFact,
)
from loadtest.sparsity.summary import study_summary
from loadtest.sparsity.tables import (
    ablation_table,
    forced_table,
    frontier,
    generation_table,
    needle_table,
    policy_table,
)
from loadtest.sparsity.verdicts import verdict_lines

FORCED = ForcedFact(
    run=0, part=TEACHER, text="prose", context=4096, seed=0, arm="delta", budget=1024,
    prefill=WHOLE, group="policies", kept=4096, steps=64, scored=64, kl=0.01, kl_p95=0.05,
    agreement=0.95, kl_full=0.01, agreement_full=0.95, accuracy=0.5, dense_accuracy=0.5,
    logprob=-2.0, dense_logprob=-2.0, attended=500, dense_attended=1000, unpruned_attended=1000,
    expected_attended=505, layer_recall=[None, 0.9], recall_p10=0.8, recency_share=0.1, churn=0.2,
    seconds=1.0, kl_blocks=[0.01, 0.011, 0.009, 0.01], agreement_blocks=[1.0, 0.9, 1.0, 0.9],
)  # fmt: skip
NEEDLE = NeedleFact(
    run=0, part="needle", task="niah_noise_1key", length=2048, depth=0.5, seed=0, arm="delta",
    budget=1024, prefill=PRUNED, group="policies", prompt_tokens=2000, kept=400, right=True,
    kl=0.1, attended=100, dense_attended=200,
)  # fmt: skip
GENERATION = GenerationFact(
    run=0, text="prose", context=1024, seed=0, temperature=0.0, arm="dense", budget=0, tokens=100,
    logprob=-0.5, logprob_curve=[-0.5], agreement=1.0, kl=0.0, eos_at=None, diverges_at=None,
    distinct=0.9, attended=100, dense_attended=100, token_ids=[1] * 100,
)  # fmt: skip


def prose(arm, kl, **changes):
    """A policy on one window whose blocks lie around `kl`."""
    blocks = [kl * factor for factor in (0.9, 1.0, 1.1, 1.0)]
    return replace(FORCED, arm=arm, kl=kl, kl_full=kl, kl_blocks=blocks, **changes)


def asked(arm, rights, **changes):
    """One question for each of `rights`."""
    changed = replace(NEEDLE, arm=arm, **changes)
    return [replace(changed, seed=seed, right=right) for seed, right in enumerate(rights)]


def in_full(rights, **changes):
    return asked("full", rights, budget=0, prefill=WHOLE, **changes) + asked(
        "dense", rights, budget=0, **changes
    )


def test_windows_are_averaged_and_their_spread_is_kept():
    (row,) = forced_table([prose("delta", 0.01), prose("delta", 0.03, seed=1)])
    assert row["texts"] == 2
    assert row["kl"] == pytest.approx(0.02)
    assert row["kl_spread"] == [0.01, 0.03]
    assert row["kl_median"] == pytest.approx(0.019)
    low, high = row["kl_interval"]
    assert 0.01 < low < 0.02 < high < 0.03
    assert row["agreement"] == Share(122, 128).to_json()
    assert row["reduction"] == 2.0
    assert row["formula_deviation"] == pytest.approx(-5 / 505)
    assert (row["layer_recall"], row["recall"]) == ([None, 0.9], 0.9)


def test_needles_count_among_the_answers_of_full_and_of_dense():
    facts = [
        *asked("full", [True, True, True, False], budget=0, prefill=WHOLE),
        *asked("dense", [True, True, False, True], budget=0),
        *asked("delta", [True, False, True, True]),
    ]
    rows = {row["arm"]: row for row in needle_table(facts)}
    assert rows["full"]["of_full"]["right"] == 3
    assert rows["dense"]["of_full"] == Share(2, 3).to_json()
    assert rows["delta"]["of_full"] == Share(2, 3).to_json()
    assert rows["delta"]["of_dense"] == Share(1, 2).to_json()
    assert rows["delta"]["by_task"] == {"niah_noise_1key": Share(1, 2).to_json()}


def test_the_policy_table_joins_prose_and_needles():
    facts = [prose("delta", 0.01), *in_full([True]), *asked("delta", [True])]
    rows = {row["arm"]: row for row in policy_table(facts)}
    assert rows["delta"]["kl"] == 0.01
    assert rows["delta"]["needle"]["of_dense"]["right"] == 1
    assert rows["delta"]["needle_whole"] is None
    assert rows["full"]["needle_whole"]["of_full"]["of"] == 1
    assert "kl" not in rows["full"]


def test_an_arm_is_ahead_only_where_the_difference_is_certain():
    near, far = [prose("a", 0.01)], [prose("b", 0.03)]
    noisy = [replace(prose("c", 0.011), kl_blocks=[0.0, 0.03, 0.001, 0.013])]
    verdicts = [closeness(near, far), closeness(far, near), closeness(near, noisy)]
    assert [duel and duel.verdict for duel in verdicts] == ["ahead", "behind", "not told apart"]
    assert closeness(near, [prose("b", 0.03, seed=7)]) is None
    many, few = asked("a", [True] * 8), asked("b", [False] * 8)
    verdicts = [answers(many, few), answers(few, many), answers(many[:3], few[:3])]
    assert [duel and duel.verdict for duel in verdicts] == ["ahead", "behind", "not told apart"]
    assert answers(many, []) is None
    whole = {"attended": 200}
    assert answers(asked("a", [True], **whole), asked("b", [True], **whole)) is None


def test_a_duel_says_where_a_budget_did_not_make_reads_alike():
    alike = closeness([prose("a", 0.01)], [prose("b", 0.03, attended=600)])
    apart = closeness([prose("a", 0.01)], [prose("raas", 0.003, attended=990)])
    assert alike is not None
    assert alike.text.endswith("reads 0.83 times as much")
    assert apart is not None
    assert apart.text.endswith("reads 0.51 times as much, not at equal reads")


def test_an_interval_is_the_same_every_time():
    values = [0.1, 0.2, 0.3, 0.4]
    found = mean_interval(values)
    assert found == mean_interval(values)
    assert found is not None
    low, high = found
    assert 0.1 < low < 0.25 < high < 0.4
    assert mean_interval([1.0]) is None


def test_verdicts_name_rivals_targets_and_who_does_not_beat_random():
    facts = [
        prose("delta", 0.01), prose("quest", 0.03), prose("random", 0.2), prose("recency", 0.25),
        prose("oracle_topk", 0.005),
        prose("delta", 0.02, part=LONG, text="copy"), prose("quest", 0.01, part=LONG, text="copy"),
        *in_full([True] * 8), *asked("delta", [True] * 8), *asked("quest", [True] * 8),
        *asked("random", [False] * 8),
    ]  # fmt: skip
    lines = verdict_lines(facts)
    quest = next(line for line in lines if "delta against quest" in line)
    assert quest.startswith("1024 tokens")
    assert "prose: ahead (KL 0.0100 against 0.0300" in quest
    assert "long texts: behind" in quest
    assert "needles after pruning: not told apart (8 right answers against 8 of 8" in quest
    assert any("oracle_topk (a bound, not a rival): prose: behind" in line for line in lines)
    assert [line for line in lines if " random on " in line] == [
        "recency at 1024 tokens is behind random on prose: KL 0.2500 against 0.2000, "
        "agreement 95.0% against 95.0%, reads 1.00 times as much"
    ]
    assert any(line.startswith("target of 94% and KL 0.015 at 1024 tokens met") for line in lines)
    assert any("within 3% of the formula in 7 of 7" in line for line in lines)


def test_what_strays_from_the_formula_is_named():
    lines = verdict_lines([prose("delta", 0.01, expected_attended=450)])
    assert "delta at 1024 tokens is +11.1% off" in lines


def layout(select, mode, kl, right):
    place = {
        "arm": f"layout={mode}",
        "budget": 256,
        "prefill": f"pruned/{select}",
        "group": "layout",
    }
    return [
        replace(prose("", kl), part=ABLATION, **place),
        *asked(
            "",
            [True] * right + [False] * (10 - right),
            part=ABLATION,
            **{name: value for name, value in place.items() if name != "arm"},
        ),
    ]


def test_the_layout_mode_with_most_answers_is_supported():
    parts = [
        layout("shared", "board", 0.05, 9),
        layout("layer", "board", 0.03, 8),
        layout("head", "segment", 0.01, 1),
    ]
    facts = [
        replace(fact, arm=mode)
        for part, mode in zip(
            parts, ("layout=board", "layout=board", "layout=segment"), strict=True
        )
        for fact in part
    ]
    facts += asked("full", [True] * 10, budget=0, prefill=WHOLE, part=ABLATION)
    lines = verdict_lines(facts)
    assert lines[0].startswith("layout shared with board: 9 of 10 answers of full")
    assert (
        "the table supports shared with board; not told apart from it by answers: layer with board"
        in lines
    )


def test_the_frontier_marks_what_nothing_beats():
    points = [("a", 300, 0.9), ("b", 400, 0.96), ("c", 450, 0.93)]
    facts = [
        replace(FORCED, part=ABLATION, group="deltas", arm=arm, attended=read, agreement=same)
        for arm, read, same in points
    ]
    assert [(p["arm"], p["best"]) for p in frontier(facts)] == [
        ("a", True),
        ("b", True),
        ("c", False),
    ]
    lines = verdict_lines([*facts, FORCED])
    assert any(
        "96% at no more than 50.0% of dense's reads met: best is b" in line for line in lines
    )


def test_the_profiles_own_set_may_be_the_best():
    (line,) = [line for line in verdict_lines([replace(FORCED, agreement=0.97)]) if "96%" in line]
    assert "met: best is the profile's over the teacher's texts at 1024 tokens (97.0%" in line


def test_mean_pages_leave_the_full_layers_out():
    arm = ArmFact(
        run=0, arm="mass=0.9", budget=4096, prefill=WHOLE, group="mass", policy="delta",
        roles="WDSS",
    )  # fmt: skip
    # Four layers of 1,600 slots in 2 steps; the two sparse ones read 40 pages of 16.
    fact = replace(
        FORCED, part=ABLATION, group="mass", arm="mass=0.9", budget=4096, steps=2,
        dense_attended=2 * 4 * 1600, attended=2 * (2 * 1600 + 2 * 640),
    )  # fmt: skip
    (row,) = ablation_table([arm, fact])
    assert row["mean_pages"] == pytest.approx(40.0)


def test_generations_are_compared_with_denses_own():
    own = GENERATION
    delta = replace(own, arm="delta", budget=1024, logprob=-0.52, attended=50, eos_at=70)
    rows = {row["arm"]: row for row in generation_table([own, delta])}
    assert rows["delta"]["logprob_loss"] == pytest.approx(0.02)
    assert rows["delta"]["reduction"] == 2.0
    lines = verdict_lines([own, delta])
    assert any(
        "0.03 nats a token over 100 tokens met: delta loses 0.0200" in line for line in lines
    )
    assert any("first end of text at 70, dense's at None" in line for line in lines)


def test_a_summary_of_nothing_is_empty():
    summary = study_summary([])
    assert summary["verdicts"] == []
    assert not any(starmap(lambda _, table: table, summary.items()))

import pytest

from loadtest.sparsity import forced
from loadtest.sparsity.records import (
    ArmFact,
    ForcedFact,
    GenerationFact,
    NeedleFact,
    PageStripFact,
)
from loadtest.sparsity.settings import StudySettings
from shared.errors import ConfigError


def of(facts, kind):
    return [fact for fact in facts if isinstance(fact, kind)]


@pytest.fixture
def always_right(monkeypatch):
    """Every question counts as answered, whatever the tiny model says."""

    def right(**fields):
        return NeedleFact(**{**fields, "right": True})

    monkeypatch.setattr("loadtest.sparsity.needles.NeedleFact", right)


def test_every_policy_is_measured_beside_dense_on_every_window(run):
    finished, facts, said = run(policies=(), windows=2)
    assert finished
    measured = of(facts, ForcedFact)
    assert len(measured) == len({fact.key for fact in measured}) == 2 * 12
    assert said[-1] == ("teacher", 22, 22)
    arms = {fact.arm: fact for fact in of(facts, ArmFact)}
    assert set(arms) == {fact.arm for fact in measured}
    assert arms["delta"].roles == "WDSDSS"
    assert arms["dense"].roles == "W" * 6
    for fact in measured:
        assert fact.steps == fact.scored == 12
        assert fact.attended <= fact.dense_attended == fact.unpruned_attended


def test_dense_is_its_own_measure(run):
    _, facts, _ = run(windows=1)
    (dense,) = [fact for fact in of(facts, ForcedFact) if fact.arm == "dense"]
    assert (dense.kl, dense.agreement, dense.reduction) == (0.0, 1.0, 1.0)
    assert (dense.accuracy, dense.logprob) == (dense.dense_accuracy, dense.dense_logprob)
    assert dense.layer_recall == [None] * 6


@pytest.mark.parametrize("policy", ["delta", "quest", "raas", "tidal", "h2o", "oracle_topk"])
def test_a_budget_of_all_pages_is_dense(run, policy):
    _, facts, _ = run(policies=(policy,), budgets=(20,))
    (fact,) = [fact for fact in of(facts, ForcedFact) if fact.arm == policy]
    assert fact.kl == pytest.approx(0.0, abs=1e-6)
    assert fact.agreement == 1.0
    assert fact.attended == fact.dense_attended


@pytest.mark.parametrize("context", [208, 209, 223])
def test_what_is_read_follows_the_formula(run, context):
    _, facts, _ = run(
        policies=("delta", "quest", "tidal", "recency", "h2o"), steps=32, context=context
    )
    for fact in of(facts, ForcedFact):
        if fact.arm != "dense":
            assert fact.reduction > 1.2
            # The last page is half full on average: half a page in 6.
            assert abs(fact.formula_deviation) < 0.06


def test_choices_are_looked_at_in_layers_that_choose(run):
    _, facts, _ = run()
    seen = {fact.arm: fact for fact in of(facts, ForcedFact)}
    delta = seen["delta"]
    assert [value is not None for value in delta.layer_recall] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]
    assert all(0.0 < value <= 1.0 for value in delta.layer_recall if value is not None)
    assert delta.recall_p10 <= max(value for value in delta.layer_recall if value is not None)
    # One recent page of six, which holds 1, 5 and 9 slots at the steps looked at.
    shares = [held / (80 + held) for held in (1, 5, 9)]
    assert seen["recency"].recency_share == pytest.approx(sum(shares) / 3)
    assert seen["random"].churn > seen["delta"].churn >= seen["recency"].churn == 0.0


def test_a_study_that_was_stopped_goes_on_without_measuring_twice(run, monkeypatch):
    _, facts, _ = run()
    monkeypatch.setattr(forced, "row_batch", None)
    _, again, _ = run()
    assert again == facts


def test_new_arms_are_added_to_old_results(run):
    _, facts, _ = run()
    _, more, _ = run(policies=("quest",))
    assert more[: len(facts)] == facts
    assert {fact.arm for fact in more[len(facts) :]} == {"quest"}


def test_results_do_not_depend_on_how_arms_are_batched(run, monkeypatch, tmp_path):
    _, together, _ = run()
    (tmp_path / "results.jsonl").unlink()
    monkeypatch.setattr(forced, "_BATCH_BYTES", {"cpu": 0})
    _, apart, _ = run()
    for one, other in zip(of(together, ForcedFact), of(apart, ForcedFact), strict=True):
        assert one.arm == other.arm
        assert one.kl == pytest.approx(other.kl, abs=1e-6)
        assert one.attended == other.attended


def test_nothing_is_begun_after_the_time_is_up(run):
    finished, facts, _ = run(
        parts=("teacher", "needle", "long", "generation", "ablation"), max_seconds=-1.0
    )
    assert not finished
    assert not facts


def test_a_question_that_full_does_not_answer_has_no_other_arm(run):
    finished, facts, said = run(parts=("needle",))
    assert finished
    assert [fact.arm for fact in of(facts, NeedleFact)] == ["full"]
    assert said == [("needle", 0, 1)]


@pytest.mark.usefixtures("always_right")
def test_needles_are_asked_after_pruning_under_every_arm(run):
    finished, facts, said = run(parts=("needle",), budgets=(3,), keep_rate=0.2)
    assert finished
    assert said[-1] == ("needle", 1, 1)
    whole = {fact.arm: fact for fact in of(facts, NeedleFact) if fact.prefill == "whole"}
    assert set(whole) == {"full", "dense", "delta", "random", "recency"}
    assert whole["dense"].attended == whole["full"].attended > whole["delta"].attended
    found = {fact.arm: fact for fact in of(facts, NeedleFact) if fact.prefill == "pruned"}
    found["full"] = whole["full"]
    assert found["full"].prefill == "whole"
    assert found["full"].kept == found["full"].prompt_tokens
    for name in ("dense", "delta", "random", "recency"):
        assert found[name].prefill == "pruned"
        assert found[name].kept == int(0.2 * found[name].prompt_tokens)
        assert found[name].dense_attended == found["dense"].attended < found["full"].attended
    assert found["dense"].kl == 0.0 < found["recency"].kl
    _, again, _ = run(parts=("needle",), budgets=(3,), keep_rate=0.2)
    assert again == facts


def test_long_texts_score_only_what_answers(run):
    finished, facts, _ = run(parts=("long",), policies=("delta", "raas"))
    assert finished
    measured = of(facts, ForcedFact)
    assert {fact.text for fact in measured} == {"ledger", "sums", "copy", "repeats"}
    for fact in measured:
        assert 0 < fact.scored <= fact.steps
        assert (fact.scored == fact.steps) == (fact.text == "repeats")
        assert len(fact.kl_blocks) == max(1, fact.scored // 16)
    for fact in measured:
        if fact.arm == "raas" and fact.text != "repeats":
            assert fact.reduction > 1.5, "a short prompt leaves room to forget"


def test_generations_are_scored_by_dense_over_the_same_tokens(run):
    finished, facts, _ = run(parts=("generation",))
    assert finished
    dense, delta = of(facts, GenerationFact)
    assert (dense.arm, delta.arm) == ("dense", "delta")
    for fact in (dense, delta):
        assert fact.tokens == len(fact.token_ids) == 40
        assert fact.logprob < 0.0
        assert len(fact.logprob_curve) == 1
    assert (dense.kl, dense.agreement, dense.diverges_at) == (0.0, 1.0, None)
    assert delta.token_ids[0] == dense.token_ids[0], "the prefill gives the first token"
    assert delta.attended < delta.dense_attended == dense.attended
    strips = of(facts, PageStripFact)
    assert [strip.layer for strip in strips] == [2, 4, 5]
    assert [strip.planner for strip in strips] == [1, 3, 3]
    for strip in strips:
        assert strip.steps == list(range(0, 39, 4))
        assert all(strip.refreshed)
        for pages, held in zip(strip.pages, strip.num_pages, strict=True):
            assert len(pages) == 6
            assert {0, held - 1} <= set(pages)
    _, again, _ = run(parts=("generation",))
    assert again == facts


def test_each_window_is_continued_by_itself(run):
    _, facts, said = run(parts=("generation",), generation_windows=2, generation_tokens=10)
    found = of(facts, GenerationFact)
    assert [(fact.seed, fact.arm) for fact in found] == [
        (0, "dense"), (0, "delta"), (1, "dense"), (1, "delta"),
    ]  # fmt: skip
    assert said == [("generation", 1, 2), ("generation", 2, 2)]


def test_draws_are_shared_between_arms(run):
    _, facts, _ = run(parts=("generation",), temperature=1.0, generation_pages=20)
    dense, delta = of(facts, GenerationFact)
    assert delta.token_ids == dense.token_ids
    assert delta.distinct > 0.5


@pytest.mark.usefixtures("always_right")
def test_ablations_change_one_thing_at_a_time(run):
    finished, facts, _ = run(parts=("ablation",))
    assert finished
    measured = of(facts, ForcedFact)
    groups = {fact.group for fact in measured}
    assert {"deltas", "recency", "pages", "heads", "refresh", "mass", "first-dense"} <= groups
    assert {"layout", "extra"} <= groups
    modes = {(fact.prefill, fact.arm) for fact in measured if fact.group == "layout"}
    assert modes == {
        (f"pruned/{select}", f"layout={mode}")
        for select in ("head", "layer", "shared")
        for mode in ("board", "segment")
    }
    pruned = [fact for fact in measured if fact.prefill != "whole"]
    for fact in pruned:
        assert fact.kept < fact.context
        assert fact.attended <= fact.dense_attended < fact.unpruned_attended
        assert fact.kl_full > 0.0
    assert {fact.group for fact in of(facts, NeedleFact)} == {"policies", "layout", "extra"}


def test_texts_that_do_not_fit_the_context_are_refused(run):
    with pytest.raises(ConfigError, match="positions"):
        run(context=4096)


@pytest.mark.parametrize(
    ("begun", "changed"),
    [
        ({}, {"steps": 10}),
        ({"parts": ("generation",), "generation_tokens": 20}, {"generation_tokens": 16}),
    ],
)
def test_other_sizes_do_not_go_on_with_results(run, begun, changed):
    run(**begun)
    assert run(**begun)[0]
    with pytest.raises(ConfigError, match=r"do not mix; give the flags"):
        run(**(begun | changed))


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ("teachers",)},
        {"policies": ("quesst",)},
        {"keep_rate": 1.0},
        {"steps": 0},
        {"needle_prefills": ("half",)},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes):
    with pytest.raises(ConfigError):
        StudySettings(**changes)

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.quality import runner, study
from loadtest.quality.layers import correlation_curves
from loadtest.quality.oracle import OracleSwitches
from loadtest.quality.runner import Evaluator, Setup
from loadtest.quality.settings import StudySettings
from loadtest.quality.shard import Shard
from loadtest.quality.store import CorrelationCurve, ResultStore, Timing, Trial, read_facts
from loadtest.quality.study import Study
from loadtest.quality.tasks.needle import needle_sample
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.quality.tasks.sample import Protocol
from shared.errors import ConfigError
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import PruningParams

LENGTH = 640
SMALL = StudySettings(
    parts=("needle",),
    rankers=("claa",),
    keep=(0.2,),
    lengths=(LENGTH,),
    depths=(0.5,),
    seeds=1,
    mixture_lengths=(LENGTH,),
    mixture_answers=2,
    mixture_prompts=3,
    floors=(200,),
    ablation_lengths=(LENGTH,),
    ablation_answers=1,
    timing_lengths=(LENGTH,),
    timing_repeats=2,
)


@pytest.fixture(scope="module")
def setup(tiny_model: Transformer, tiny_model_dir: Path) -> Setup:
    return Setup(
        model=tiny_model,
        attention=TorchAttention(),
        tokenizer=Tokenizer.from_folder(tiny_model_dir),
        base=PruningParams(pruning_layer=3, deferred_layers=2, aggregation_window=2),
        draft=tiny_model,
        switches=OracleSwitches(),
    )


@pytest.fixture
def run(setup, tmp_path):
    """Runs a study in the test's folder; gives whether it ended, its facts and what it said."""

    def run_study(settings=SMALL, **changes):
        said = []

        def progress(part, *, done, total):
            said.append((part, done, total))

        finished = Study(
            setup,
            settings=replace(settings, **changes),
            store=ResultStore(tmp_path, resume=True),
            run=0,
            progress=progress,
        ).run()
        return finished, read_facts(tmp_path), said

    return run_study


@pytest.fixture
def always_right(monkeypatch):
    def right(model, prompts, answers, *, questions=None):
        return [True] * len(prompts)

    monkeypatch.setattr(runner, "answers_are_greedy", right)


def arms_of(facts):
    return {fact.arm for fact in facts if isinstance(fact, Trial)}


def test_a_needle_grid_measures_every_arm_on_every_prompt(run):
    finished, facts, said = run(rankers=())
    assert finished
    assert said == [("needle", 1, 2), ("needle", 2, 2)]
    trials = [fact for fact in facts if isinstance(fact, Trial)]
    assert len(trials) == len({trial.key for trial in trials})
    assert {"full", "claa", "gemfilter", "oracle-deferred", "random"} <= arms_of(facts)
    for trial in trials:
        if trial.arm == "full":
            assert trial.kept_tokens == trial.prompt_tokens
        elif trial.arm == "oracle":
            assert trial.spearman == pytest.approx(1.0)
        elif trial.arm != "snapkv":
            assert trial.kept_tokens == int(0.2 * trial.prompt_tokens)
            assert trial.first_token_kl is not None


def test_a_study_that_was_stopped_goes_on_without_measuring_twice(run, monkeypatch):
    _, facts, _ = run()
    read = []
    monkeypatch.setattr(runner, "rank_and_prefill", lambda *_args, **kwargs: read.append(kwargs))
    _, again, _ = run()
    assert again == facts
    assert not read


def test_new_arms_are_added_to_old_results(run):
    _, facts, _ = run()
    _, more, _ = run(rankers=("fastkv",))
    assert more[: len(facts)] == facts
    assert arms_of(more) - arms_of(facts) == {"fastkv"}


def test_no_prompt_is_begun_after_the_time_is_up(run):
    finished, facts, _ = run(max_seconds=-1.0)
    assert not finished
    assert not facts


def test_a_later_question_leaves_the_first_token_uncompared(run):
    finished, facts, _ = run(
        protocols=(Protocol.QUESTION_INCLUDED, Protocol.QUESTION_EXCLUDED), lengths=(LENGTH,)
    )
    assert finished
    pruned = [fact for fact in facts if isinstance(fact, Trial) and fact.arm == "claa"]
    assert {trial.protocol for trial in pruned} == {"included", "excluded"}
    for trial in pruned:
        assert (trial.first_token_kl is None) == (trial.protocol == "excluded")
        if trial.protocol == "excluded":
            assert trial.kept_tokens < int(0.2 * trial.prompt_tokens)


def test_the_mixture_prunes_only_what_full_answers(run):
    finished, facts, said = run(parts=("mixture",))
    assert finished
    assert arms_of(facts) == {"full"}
    assert said[-1] == ("mixture", 0, 2)


@pytest.mark.usefixtures("always_right")
def test_the_mixture_ends_with_enough_answers(run):
    finished, facts, said = run(parts=("mixture", "ablation"))
    assert finished
    assert said[1] == ("mixture", 2, 2)
    assert {"claa+floor=0", "claa+floor=200", "lp=3", "n=1"} <= arms_of(facts)
    mixture = [fact for fact in facts if isinstance(fact, Trial) and fact.part == "mixture"]
    assert len({trial.sample_key for trial in mixture}) == 2


@pytest.mark.usefixtures("always_right")
def test_shards_measure_together_what_one_study_does(run):
    _, whole, _ = run(parts=("mixture", "needle"), mixture_answers=3)
    keys = {fact.key for fact in whole}
    parts = [
        run(parts=("mixture", "needle"), mixture_answers=3, shard=Shard(number=n, count=3))[1]
        for n in (1, 2, 3)
    ]
    assert {fact.key for fact in parts[-1]} == keys, "nothing new was left to measure"


@pytest.mark.usefixtures("always_right")
def test_a_shard_leaves_the_rest_to_the_others(run):
    _, facts, said = run(parts=("mixture",), shard=Shard(number=2, count=3))
    prompts = {fact.sample_key for fact in facts if isinstance(fact, Trial)}
    assert len(prompts) == 1
    assert said == [("mixture", 1, 1)]


def test_timing_compares_with_full_in_the_same_repeats(run):
    _, facts, _ = run(parts=("timing",), rankers=("claa", "oracle"))
    timings = {fact.arm: fact for fact in facts if isinstance(fact, Timing)}
    assert set(timings) == {"full", "claa", "random", "recency"}
    assert timings["full"].ratio_to_full == [1.0, 1.0]
    assert all(len(timing.seconds) == 2 for timing in timings.values())


def test_generated_answers_are_scored_by_the_samples_metric(run, setup, monkeypatch):
    sample = replace(_needle(setup), max_new_tokens=3)
    monkeypatch.setattr(study, "ruler_samples", lambda *_a, **_k: iter([sample]))
    _, facts, _ = run(parts=("ruler",))
    assert {fact.score for fact in facts if isinstance(fact, Trial)} <= {0.0, 1.0}


def test_an_answer_is_no_longer_than_its_sample_grants(setup):
    evaluator = Evaluator(setup, word_for_word=False)
    asked = [replace(_needle(setup), max_new_tokens=tokens) for tokens in (2, 5)]
    assert [len(full.answer_ids) for full in evaluator.read_full(asked)] == [2, 5]


def test_correlation_curves_cover_layers_aggregates_and_both_oracles(setup):
    evaluator = Evaluator(setup, word_for_word=False)
    (full,) = evaluator.read_full([replace(_needle(setup), max_new_tokens=2)])
    curves = correlation_curves(setup, full, run=0)
    assert len(curves) == 2 * 5
    assert all(isinstance(curve, CorrelationCurve) for curve in curves)
    for curve in curves:
        assert len(curve.rho) == setup.model.config.num_layers
        assert all(-1.0 <= value <= 1.0 for value in curve.rho)
        assert curve.coverage is not None
        assert all(0.0 <= value <= 1.0 for value in curve.coverage)


def test_longbench_records_are_measured(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("longbench")
    record = {"context": "word " * 60, "input": "Which?", "answers": ["word"]}
    (folder / "trec.jsonl").write_text(json.dumps(record | {"all_classes": ["word"]}) + "\n")
    _, facts, _ = run(parts=("longbench",), longbench=folder, longbench_tokens=400)
    assert {fact.part for fact in facts if isinstance(fact, Trial)} == {"longbench"}


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ("timing", "needle"), "shard": Shard(number=1, count=2)},
        {"parts": ("neddle",)},
        {"parts": ("longbench",)},
        {"seeds": 0},
    ],
)
def test_settings_that_cannot_run_are_refused(changes):
    with pytest.raises(ConfigError):
        replace(SMALL, **changes)


def _needle(setup):
    return needle_sample(
        PromptWriter(setup.tokenizer), task="niah_noise_1key", length=LENGTH, depth=0.5, seed=0
    )

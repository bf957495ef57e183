from dataclasses import replace
from functools import partial

import pytest

from loadtest.quality.store import ResultStore, Run, Trial, merge_folders, read_facts
from shared.errors import ConfigError
from tests.support.quality_facts import RUN, TRIAL, study_facts, trials


def test_every_kind_of_fact_comes_back_as_it_was(tmp_path):
    facts = study_facts()
    ResultStore(tmp_path, resume=False).append(facts)
    assert read_facts(tmp_path) == facts


def test_results_are_not_overwritten_unasked(tmp_path):
    ResultStore(tmp_path, resume=False).append([RUN])
    with pytest.raises(ConfigError, match="--resume"):
        ResultStore(tmp_path, resume=False)


def test_a_killed_run_goes_on_after_its_last_whole_line(tmp_path):
    store = ResultStore(tmp_path, resume=False)
    store.append(trials("claa", [1.0, 0.0]))
    with store.path.open("a") as file:
        file.write('{"kind": "trial", "run": 0, "pa')
    store = ResultStore(tmp_path, resume=True)
    first, second, third = trials("claa", [1.0, 0.0, 1.0])
    assert first.key in store
    assert store.trial(second.key) == second
    assert third.key not in store
    store.append([third])
    assert read_facts(tmp_path) == [first, second, third]


def test_a_report_leaves_out_the_line_that_is_being_written(tmp_path):
    store = ResultStore(tmp_path, resume=False)
    store.append([RUN])
    with store.path.open("a") as file:
        file.write('{"kind": "trial", "run": 0, "pa')
    assert read_facts(tmp_path) == [RUN]


def test_a_file_of_another_kind_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\xff\xfe\x00\n")
    for opened in (read_facts, partial(ResultStore, resume=True)):
        with pytest.raises(ConfigError, match=r"results\.jsonl cannot be read"):
            opened(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match=r"results\.jsonl cannot be read"):
        read_facts(tmp_path)


def test_a_file_in_the_folders_place_is_named(tmp_path):
    taken = tmp_path / "taken"
    taken.touch()
    with pytest.raises(ConfigError, match="taken cannot hold results"):
        ResultStore(taken, resume=False)


def test_the_first_of_equal_keys_counts(tmp_path):
    store = ResultStore(tmp_path, resume=False)
    store.append([TRIAL, replace(TRIAL, score=0.0)])
    assert read_facts(tmp_path) == [TRIAL]


def test_runs_are_numbered_in_order(tmp_path):
    store = ResultStore(tmp_path, resume=False)
    assert [store.open_run(RUN).run, store.open_run(RUN).run] == [0, 1]
    assert ResultStore(tmp_path, resume=True).open_run(RUN).run == 2


@pytest.mark.parametrize(
    "change", [{"model_hash": "cafe"}, {"dtype": "bfloat16"}, {"pruning": {"ranker": "fastkv"}}]
)
def test_results_of_another_model_type_or_profile_do_not_mix(tmp_path, change):
    store = ResultStore(tmp_path, resume=False)
    store.open_run(RUN)
    with pytest.raises(ConfigError, match=next(iter(change))):
        store.open_run(replace(RUN, **change))


def test_a_strange_line_is_named(tmp_path):
    store = ResultStore(tmp_path, resume=False)
    store.append([RUN])
    with store.path.open("a") as file:
        file.write('{"kind": "gossip"}\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_facts(tmp_path)


def test_one_prompt_has_one_key_whatever_the_arm(tmp_path):
    other = replace(TRIAL, arm="claa", rate=0.2)
    assert other.sample_key == TRIAL.sample_key
    assert other.key != TRIAL.key


def test_merged_folders_keep_every_fact_and_the_run_of_each(tmp_path):
    one, two, three = trials("claa", [1.0, 0.0, 1.0])
    left = ResultStore(tmp_path / "left", resume=False)
    left.append([left.open_run(replace(RUN, command="left")), one, two])
    right = ResultStore(tmp_path / "right", resume=False)
    right.open_run(replace(RUN, command="right"))
    again = right.open_run(replace(RUN, command="right again"))
    right.append([replace(two, score=0.5), replace(three, run=again.run)])
    found = merge_folders([left.path.parent, right.path.parent], out=tmp_path / "all")
    assert found == 3
    facts = read_facts(tmp_path / "all")
    commands = [fact.command for fact in facts if isinstance(fact, Run)]
    assert commands == ["left", "right", "right again"]
    assert [fact for fact in facts if isinstance(fact, Trial)] == [
        one, two, replace(three, run=2)
    ]  # fmt: skip


def test_a_merge_wants_results_of_one_model_and_a_new_folder(tmp_path):
    for name, run in (("left", RUN), ("right", replace(RUN, model_hash="cafe"))):
        ResultStore(tmp_path / name, resume=False).open_run(run)
    with pytest.raises(ConfigError, match="model_hash"):
        merge_folders([tmp_path / "left", tmp_path / "right"], out=tmp_path / "all")
    assert read_facts(tmp_path / "all") == []
    with pytest.raises(ConfigError, match="nowhere has no results"):
        merge_folders([tmp_path / "left", tmp_path / "nowhere"], out=tmp_path / "none")
    ResultStore(tmp_path / "orphan", resume=False).append([TRIAL])
    with pytest.raises(ConfigError, match="without the run"):
        merge_folders([tmp_path / "orphan"], out=tmp_path / "none")
    with pytest.raises(ConfigError, match="--resume"):
        merge_folders([tmp_path / "left"], out=tmp_path / "right")

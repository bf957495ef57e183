"""Δ-layers in a profile: chosen alone or with the rest, repeatable, and nothing else is touched."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy import cli
from loadtest.calibration.delta_choice import expected_recall
from loadtest.calibration.delta_profile import with_delta_layers
from loadtest.calibration.delta_samples import PROSE_TOKENS, generated_delta_samples
from loadtest.calibration.delta_settings import DeltaSettings
from loadtest.calibration.run import WrittenProfile, run_calibration
from loadtest.calibration.settings import CalibrationSettings
from loadtest.quality.tasks.prompt import PromptWriter
from loadtest.sparsity.layer_evidence import recall_matrix
from shared.errors import ConfigError
from shared.model.profile import load_profile, profile_path
from shared.model.profile_toml import profile_text, read_profile
from shared.model.random import random_config
from shared.model.weights import load_model
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import SparsityParams

DELTA = DeltaSettings(
    samples=3, steps=4, full_layers=4, page_budget=16, kl_samples=2, kl_steps=3, refine=1
)


def ignore(stage: str, done: int, total: int) -> None:
    pass


def settings(folder: Path, **changes: object) -> CalibrationSettings:
    values = {
        "model": str(folder), "lengths": (200, 700), "sparsity_only": True, "delta": DELTA,
    }  # fmt: skip
    return CalibrationSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def kept_profile(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with evidence and values of its own, for the tiny model."""
    path = tmp_path_factory.mktemp("profiles") / "kept.toml"
    model = load_profile("paper", config=random_config())
    kept = replace(
        model,
        name="kept",
        source="by hand",
        calibrated=True,
        pruning=replace(model.pruning, pruning_layer=3, min_keep=40),
        sparsity=SparsityParams(full_layers=(0, 1, 2), page_budget=18, recency_pages=3),
        sources={"pruning.min_keep": "chosen", "sparsity.page_budget": "measured"},
    )
    evidence = {"command": "by hand", "by_layer": {"rho": [0.1, 0.25, 1e-05], "list": [[1], [2]]}}
    path.write_text(profile_text(kept, evidence=evidence, comment="# Made by hand.\n"))
    return path


@pytest.fixture(scope="module")
def written(
    tiny_model_dir: Path, kept_profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> WrittenProfile:
    return run_calibration(
        settings(tiny_model_dir, profile=str(kept_profile)),
        out=tmp_path_factory.mktemp("out") / "delta.toml",
        cache_dir=None,
        progress=ignore,
        commit="abc",
    )


def test_only_the_page_selection_changes(written: WrittenProfile, kept_profile: Path) -> None:
    before, after = read_profile(kept_profile), read_profile(written.path)
    assert written.path.read_text().startswith("# Made by hand.\n")
    assert after.pruning == before.pruning
    assert (after.source, after.calibrated) == (before.source, before.calibrated)
    assert after.sources["pruning.min_keep"] == "chosen"
    assert after.sparsity == replace(
        before.sparsity, full_layers=after.sparsity.full_layers, page_budget=16
    )
    assert written.delta is not None
    best = written.delta.best
    assert best.closeness is not None
    told = after.sources["sparsity.full_layers"]
    assert f" was the closest of the proposals (KL {best.closeness.kl:.4f} from dense); " in told
    kept = tomllib.loads(kept_profile.read_text())["evidence"]
    found = tomllib.loads(written.path.read_text())["evidence"]
    assert {key: value for key, value in found.items() if key != "sparsity"} == kept


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("shipped", "the shipped set"),
        ("refined_2", "a refined set"),
        ("low_recall", "the set by low recall"),
    ],
)
def test_the_source_names_the_set_that_was_taken(
    written: WrittenProfile, kept_profile: Path, rule: str, text: str
) -> None:
    assert written.delta is not None
    found = replace(written.delta, candidates=[replace(written.delta.best, rule=rule)])
    source = with_delta_layers(read_profile(kept_profile), found).sources["sparsity.full_layers"]
    assert source.startswith(f"calibrated: {text} was the closest ")
    # Nothing was compared where recall alone decides.
    alone = replace(found, candidates=[replace(found.best, closeness=None)])
    source = with_delta_layers(read_profile(kept_profile), alone).sources["sparsity.full_layers"]
    assert source.startswith(f"calibrated: {text}; ")


def test_the_evidence_has_both_curves_and_every_set(written: WrittenProfile) -> None:
    found = tomllib.loads(written.path.read_text())["evidence"]["sparsity"]
    assert (found["samples"], found["page_budget"], found["recency_pages"]) == (3, 16, 3)
    assert {len(curve) for curve in found["by_layer"].values()} == {6}
    chosen = read_profile(written.path).sparsity.full_layers
    assert tuple(found["full_layers"][found["chosen_by"]]) == chosen
    rules = ["recall", "low_recall", "weighted_recall", "shift"]
    assert found["expected"]["set"][:4] == rules
    assert {len(found["full_layers"][rule]) for rule in rules} == {4}
    assert (
        min(found["expected"]["kl"])
        == found["expected"]["kl"][found["expected"]["set"].index(found["chosen_by"])]
    )
    recall = recall_matrix(found["recall"], num_layers=6)
    at = found["expected"]["set"].index(found["chosen_by"])
    assert found["expected"]["recall"][at] == pytest.approx(
        expected_recall(chosen, recall), abs=2e-3
    )
    assert max(found["expected"]["weighted_recall"]) <= 1.0


def test_repeating_gives_the_same_file_even_from_its_own_result(
    written: WrittenProfile, tiny_model_dir: Path, kept_profile: Path, tmp_path: Path
) -> None:
    again = run_calibration(
        settings(tiny_model_dir, profile=str(kept_profile)),
        out=tmp_path / "again.toml",
        cache_dir=None,
        progress=ignore,
        commit="abc",
    )
    assert again.path.read_bytes() == written.path.read_bytes()
    own = tmp_path / "own.toml"
    for _ in range(2):
        before = own.read_bytes() if own.exists() else None
        start = str(own if own.exists() else kept_profile)
        # The command names the profile that it began from; here only the rest is compared.
        run_calibration(
            settings(tiny_model_dir, profile=start),
            out=own,
            cache_dir=None,
            progress=ignore,
            commit="abc",
        )
    assert before is not None
    assert own.read_text().replace(str(own), str(kept_profile)) == before.decode()


def test_workers_find_it_where_it_is_written_without_a_name(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    found = run_calibration(
        settings(tiny_model_dir), out=None, cache_dir=tmp_path, progress=ignore, commit="abc"
    )
    loaded = load_model(str(tiny_model_dir), cache_dir=tmp_path)
    assert loaded.profile.sparsity == found.profile.sparsity
    assert loaded.profile.label == "tiny (not calibrated)"
    assert found.path == profile_path(
        config=loaded.model.config, model_hash=loaded.profile.fit.hash, cache_dir=tmp_path
    )
    assert profile_path("paper", config=loaded.model.config) is None
    before = found.path.read_bytes()
    run_calibration(
        settings(tiny_model_dir), out=None, cache_dir=tmp_path, progress=ignore, commit="abc"
    )
    assert found.path.read_bytes() == before


def test_own_prompts_alone(tiny_model_dir: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    texts = ["word " * 100, "too short"]
    prompts.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    found = run_calibration(
        settings(tiny_model_dir, prompts=prompts, delta=replace(DELTA, samples=0)),
        out=tmp_path / "own.toml",
        cache_dir=None,
        progress=ignore,
        commit="abc",
    )
    assert found.delta is not None
    assert found.delta.num_samples == 1


def test_samples_that_no_choice_is_made_on_are_refused(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="no sample can show how pages are chosen"):
        run_calibration(
            settings(tiny_model_dir, lengths=(200,)),
            out=tmp_path / "none.toml",
            cache_dir=None,
            progress=ignore,
            commit="abc",
        )
    with pytest.raises(ConfigError, match="6 full layers cannot be chosen among 6"):
        run_calibration(
            settings(tiny_model_dir, delta=replace(DELTA, full_layers=6)),
            out=tmp_path / "none.toml",
            cache_dir=None,
            progress=ignore,
            commit="abc",
        )
    assert not (tmp_path / "none.toml").exists()


def test_evidence_that_cannot_be_written_again_is_refused(
    tiny_model_dir: Path, kept_profile: Path, tmp_path: Path
) -> None:
    dated = tmp_path / "dated.toml"
    dated.write_text(kept_profile.read_text() + "\n[evidence.more]\nday = 2026-01-02\n")
    with pytest.raises(ConfigError, match="holds dates"):
        run_calibration(
            settings(tiny_model_dir, profile=str(dated)),
            out=tmp_path / "x.toml",
            cache_dir=None,
            progress=ignore,
            commit="abc",
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": -1},
        {"steps": 0},
        {"kl_steps": 0},
        {"refine": -1},
        {"refine": 1, "kl_samples": 0},
    ],
)
def test_bad_sizes_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="calibration: "):
        DeltaSettings(**changes)


def test_samples_are_prose_that_goes_on_and_questions_in_turn(tiny_model_dir: Path) -> None:
    writer = PromptWriter(Tokenizer.from_folder(tiny_model_dir))
    made = generated_delta_samples(writer, count=4, lengths=(620, 700), seed=3)
    assert [sample.name == "prose" for sample in made] == [True, False, True, False]
    assert [len(sample.prompt_ids) for sample in made[::2]] == [620, 700]
    assert [len(sample.tail_ids) for sample in made] == [PROSE_TOKENS, 0, PROSE_TOKENS, 0]
    assert made[:2] == generated_delta_samples(writer, count=2, lengths=(620, 700), seed=3)
    assert made[0] != generated_delta_samples(writer, count=1, lengths=(620,), seed=4)[0]


def test_the_command_says_what_was_chosen(
    tiny_model_dir: Path, kept_profile: Path, tmp_path: Path
) -> None:
    arguments = [
        "calibrate", "--model", str(tiny_model_dir), "--sparsity-only", "--lengths", "700",
        "--delta-samples", "1", "--page-budget", "16", "--full-layers", "4", "--kl-samples", "0",
        "--delta-steps", "2", "--kl-steps", "3", "--profile", str(kept_profile),
        "--out", str(tmp_path / "cli.toml"),
    ]  # fmt: skip
    told = CliRunner().invoke(cli.app, arguments)
    assert told.exit_code == 0, told.output
    assert "(chosen): recall " in told.stdout
    assert "by shift" in told.stdout
    evidence = tomllib.loads((tmp_path / "cli.toml").read_text())["evidence"]["sparsity"]
    # The command that the profile keeps has the sizes that were asked for.
    assert (
        "--delta-steps 2 --full-layers 4 --page-budget 16 --kl-samples 0 --kl-steps 3"
        in (evidence["command"])
    )
    assert evidence["steps"] == 2
    report = json.loads(CliRunner().invoke(cli.app, [*arguments, "--json"]).stdout)
    assert "pruning" not in report
    assert report["sparsity"]["page_budget"] == 16
    first, *_ = report["sparsity"]["candidates"]
    assert (first["rule"], first["kl"]) == ("recall", None)
    assert first["full_layers"] == report["sparsity"]["full_layers"]

"""A whole calibration of the tiny model: it repeats, it is found again, it fits no other model."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy import cli
from loadtest.calibration.__main__ import main
from loadtest.calibration.answers import Target, counted_targets
from loadtest.calibration.delta_settings import DeltaSettings
from loadtest.calibration.run import WrittenProfile, run_calibration
from loadtest.calibration.samples import generated_samples
from loadtest.calibration.settings import CalibrationSettings, parse_lengths
from loadtest.quality.depth_grid import SweepGrid
from loadtest.quality.tasks.prompt import PromptWriter
from shared.errors import ConfigError
from shared.model.profile import base_profile, calibrated_path, load_profile
from shared.model.random import random_config
from shared.model.random_folder import save_random_model
from shared.model.weights import load_model
from shared.tokenizer.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[4]
GRID = SweepGrid(windows=(8, 16), pools=(7, 25), layer_counts=(1, 2))


def settings(folder: Path, **changes: object) -> CalibrationSettings:
    values = {
        "model": str(folder),
        "samples": 2,
        "lengths": (700,),
        "saving_target": 0.2,
        "grid": GRID,
        "deferred": (0, 2),
        "delta": DeltaSettings(samples=2, steps=3, page_budget=16, kl_samples=1, kl_steps=2),
    }
    return CalibrationSettings(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def stages() -> dict[str, int]:
    return {}


@pytest.fixture(scope="module")
def written(tiny_model_dir: Path, cache: Path, stages: dict[str, int]) -> WrittenProfile:
    def progress(stage: str, done: int, total: int) -> None:
        assert done <= total
        stages[stage] = done

    return run_calibration(
        settings(tiny_model_dir), out=None, cache_dir=cache, progress=progress, commit="abc"
    )


def ignore(stage: str, done: int, total: int) -> None:
    pass


def test_repeating_gives_the_same_file(
    written: WrittenProfile, tiny_model_dir: Path, cache: Path, tmp_path: Path
) -> None:
    again = run_calibration(
        settings(tiny_model_dir),
        out=tmp_path / "again.toml",
        cache_dir=cache,
        progress=ignore,
        commit="abc",
    )
    assert again.path.read_bytes() == written.path.read_bytes()


def test_every_prompt_is_reported(written: WrittenProfile, stages: dict[str, int]) -> None:
    assert stages == {
        "scores": 2,
        "depths": 2,
        "windows and deferred layers": 2,
        "Δ-layers": 2,
        "sets of full layers": 1,
    }


def test_workers_load_it_by_the_hash_of_the_weights(
    written: WrittenProfile, tiny_model_dir: Path, cache: Path
) -> None:
    loaded = load_model(str(tiny_model_dir), cache_dir=cache)
    assert loaded.profile == replace(written.profile, sources=loaded.profile.sources)
    assert loaded.profile.label == "tiny (calibrated)"
    assert written.path == calibrated_path(loaded.model.identity("").model_hash, cache)
    assert loaded.profile.pruning.pruning_layer <= 3
    assert written.found is not None
    assert written.found.saving(loaded.profile.pruning.pruning_layer) >= 0.2


def test_another_model_refuses_it(written: WrittenProfile, cache: Path, tmp_path: Path) -> None:
    other = save_random_model(tmp_path / "other", random_config(), seed=1)
    with pytest.raises(ConfigError, match="calibrated on the weights"):
        load_model(str(other), cache_dir=cache, profile=str(written.path))
    assert load_model(str(other), cache_dir=cache).profile.name == "default"
    with pytest.raises(ConfigError, match="made for 6 layers"):
        load_profile(str(written.path), config=random_config(num_layers=7))


def test_the_evidence_has_the_curves(written: WrittenProfile) -> None:
    evidence = tomllib.loads(written.path.read_text())["evidence"]
    assert evidence["prompts"] == 2
    assert len(evidence["by_layer"]["rho"]) == len(evidence["by_layer"]["coverage"]) == 6
    assert evidence["by_depth"]["pruning_layer"] == [0, 1, 2, 3, 4]
    assert len({len(column) for column in evidence["by_depth"].values()}) == 1
    assert len({len(column) for column in evidence["at_the_chosen_depth"].values()}) == 1
    assert "--out" not in evidence["command"]
    assert evidence["command"].startswith("tandem calibrate --model ")


def test_the_chosen_window_avoids_collapsed_layers_where_it_can(written: WrittenProfile) -> None:
    found = written.found
    assert found is not None
    alone = [v for v in found.depths if v.candidate.collapsed == 0]
    assert alone
    assert found.chosen.candidate.collapsed == 0


def test_prompts_of_a_user_alone(tiny_model_dir: Path, cache: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text(json.dumps({"prompt": "word " * 60}))
    written = run_calibration(
        settings(tiny_model_dir, samples=0, prompts=prompts, delta=DeltaSettings(samples=0)),
        out=tmp_path / "mine.toml",
        cache_dir=cache,
        progress=ignore,
        commit="abc",
    )
    evidence = tomllib.loads(written.path.read_text())["evidence"]
    assert (evidence["prompts"], evidence["answered_right_in_full"]) == (1, 0)
    assert "coverage" not in evidence["by_layer"]
    assert "coverage" not in evidence["by_depth"]
    assert "sparsity" not in evidence
    assert written.profile.sparsity == base_profile(random_config()).sparsity


def test_a_prompt_that_cannot_be_pruned_is_refused(
    tiny_model_dir: Path, cache: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "short.jsonl"
    prompts.write_text(json.dumps({"prompt": "hi"}))
    with pytest.raises(ConfigError, match="cannot be used"):
        run_calibration(
            settings(tiny_model_dir, samples=0, prompts=prompts, delta=DeltaSettings(samples=0)),
            out=tmp_path / "short.toml",
            cache_dir=cache,
            progress=ignore,
            commit="abc",
        )
    assert not (tmp_path / "short.toml").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": -1},
        {"samples": 0},
        {"saving_target": 0.0},
        {"saving_target": 1.0},
        {"keep_rate": 1.0},
        {"seed": -1},
        {"lengths": (0,)},
        {"profile": "paper"},
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="calibration: "):
        settings(tmp_path, **changes)


def test_the_command_gives_the_same_settings_again(tmp_path: Path) -> None:
    given = settings(tmp_path, prompts=Path("my prompts.jsonl"), keep_rate=0.1)
    for part in ("--lengths 700", "--keep 0.1", "--prompts 'my prompts.jsonl'", "--seed 0"):
        assert part in given.command


def test_lengths_from_text() -> None:
    assert parse_lengths("") == ()
    assert parse_lengths("1024, 2048") == (1024, 2048)
    with pytest.raises(ConfigError, match="no list of whole numbers"):
        parse_lengths("1k")


def test_answers_known_to_be_wrong_do_not_count(tiny_model_dir: Path) -> None:
    writer = PromptWriter(Tokenizer.from_folder(tiny_model_dir))
    (sample,) = generated_samples(writer, count=1, lengths=(700,), seed=0)
    cases = [(True, (1,)), (False, (1,)), (None, (1,)), (True, ())]
    targets = [
        Target(sample=sample, first_token=1, answer_ids=ids, right=right) for right, ids in cases
    ]
    assert counted_targets(targets) == [True, False, True, False]
    assert counted_targets([targets[1], targets[3]]) == [True, False]


def test_the_plain_script(
    tiny_model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", str(tiny_model_dir), "--samples", "1", "--lengths", "500"]
    arguments += ["--delta-samples", "1", "--page-budget", "16", "--kl-samples", "0"]
    arguments += ["--delta-steps", "2", "--kl-steps", "3"]
    out = tmp_path / "folder" / "plain.toml"
    named = ["--saving-target", "0.2", "--out", str(out), "--commit", "abc"]
    assert main([*arguments, *named]) == 0
    assert tomllib.loads(out.read_text())["evidence"]["commit"] == "abc"
    assert "--delta-steps 2 " in out.read_text()
    assert "--kl-steps 3 " in out.read_text()
    captured = capsys.readouterr()
    assert f"written to {out}" in captured.out
    assert "depths: 1 of 1 prompts" in captured.err
    assert main([*arguments, "--saving-target", "0.99"]) == 3
    assert "lower the saving target" in capsys.readouterr().err
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main([*arguments, "--saving-target", "0.2", "--out", str(blocked / "x.toml")]) == 3


def test_the_command(tiny_model_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "cli.toml"
    arguments = ["calibrate", "--model", str(tiny_model_dir), "--samples", "1", "--lengths", "500"]
    arguments += ["--delta-samples", "1", "--page-budget", "16", "--full-layers", "4"]
    arguments += ["--kl-samples", "0"]
    result = CliRunner().invoke(
        cli.app, [*arguments, "--saving-target", "0.2", "--out", str(out), "--json"]
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["path"] == str(out)
    assert report["saving"] >= 0.2
    assert len(report["sparsity"]["full_layers"]) == 4
    assert set(report["pruning"]) == {"lp", "n", "m", "W", "pool", "aggregation", "keep_rate"}


def test_the_plain_script_needs_only_the_engines_packages() -> None:
    absent = ("structlog", "typer", "rich", "orjson", "prometheus_client", "gguf")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); " + (
        "import loadtest.calibration.__main__"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

"""Profiles: the shipped one, the presets, and what a bad file is told."""

import logging
import tomllib
from collections.abc import Iterator
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any

import pytest

from shared.errors import ConfigError
from shared.model.config import ModelConfig
from shared.model.profile import base_profile, calibrated_path, load_profile, profile_names
from shared.model.profile_record import ModelFit, ModelProfile
from shared.model.profile_toml import profile_text, read_profile
from shared.model.random import random_config
from shared.types.methods import Aggregation, KvSelect

SMOLLM2 = replace(random_config(), num_layers=30, hidden_size=576, vocab_size=49152)


def shape(family: str, num_layers: int, hidden_size: int, vocab_size: int) -> ModelConfig:
    base = random_config(family)
    return replace(base, num_layers=num_layers, hidden_size=hidden_size, vocab_size=vocab_size)


SHAPES = {
    "smollm2-135m-instruct": SMOLLM2,
    "llama-3.1-8b-instruct": shape("llama", 32, 4096, 128256),
    "llama-3.2-3b-instruct": shape("llama", 28, 3072, 128256),
    "mistral-nemo-12b-instruct": shape("mistral", 40, 5120, 131072),
    "qwen2.5-1.5b": shape("qwen2", 28, 1536, 151936),
    "qwen2.5-7b": shape("qwen2", 28, 3584, 152064),
    "qwen2.5-14b": shape("qwen2", 48, 5120, 152064),
}

GOOD = """
source = "a test"
[pruning]
pruning_layer = { value = 3, source = "s" }
keep_rate = { value = 0.5, source = "t" }
aggregation = { value = "zsum_max", source = "u" }
[sparsity]
full_layers = { value = [0, 1, 2], source = "v" }
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_the_embedded_model_has_its_own_profile() -> None:
    profile = load_profile(config=SMOLLM2)
    assert profile == load_profile("smollm2-135m-instruct", config=SMOLLM2)
    p, s = profile.pruning, profile.sparsity
    assert (p.pruning_layer, p.aggregation_window, p.deferred_layers) == (21, 4, 8)
    assert (p.observation_window, p.pool_kernel, p.keep_rate) == (8, 25, 0.2)
    assert (p.min_keep, p.bypass_below) == (256, 512)
    assert (p.aggregation, p.kv_select) == (Aggregation.ZHEAD_MAX, KvSelect.SHARED)
    assert p.protect_first
    assert (s.full_layers, s.page_budget, s.recency_pages) == ((0, 1, 2, 14, 22), 16, 4)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_shipped_profile_is_found_by_shape_and_every_value_has_a_source(name: str) -> None:
    profile = load_profile(config=SHAPES[name])
    assert profile == load_profile(name, config=SHAPES[name])
    assert profile.name == name
    assert profile.source
    stated = {f"{part}.{f.name}" for part, f in _stated_fields(profile)}
    assert set(profile.sources) == stated
    assert all(profile.sources.values())
    ours = name == "smollm2-135m-instruct"
    assert profile.calibrated == ours
    # Rows of prompts pruned by KV head would leave the decode kernels under DELTA.
    assert profile.pruning.kv_select is KvSelect.SHARED
    assert profile.label == f"{name} ({'calibrated' if ours else 'not calibrated'})"


def _stated_fields(profile: ModelProfile) -> Iterator[tuple[str, Field[Any]]]:
    """The fields that a shipped profile must state: all that are not off by default."""
    for part, params in (("pruning", profile.pruning), ("sparsity", profile.sparsity)):
        for f in fields(params):
            if f"{part}.{f.name}" in profile.sources or getattr(params, f.name) != f.default:
                yield part, f


def test_the_shipped_profiles_are_those_whose_shapes_are_listed_here() -> None:
    assert set(profile_names()) == {*SHAPES, "paper"}


def test_shapes_are_told_apart() -> None:
    for name, shape in SHAPES.items():
        profile = load_profile(name, config=shape)
        assert not profile.fit.describes(replace(shape, vocab_size=shape.vocab_size + 1))


@pytest.mark.parametrize(("depth", "pruning_layer"), [(32, 15), (30, 14), (28, 13)])
def test_paper_preset(depth: int, pruning_layer: int) -> None:
    profile = load_profile("paper", config=replace(random_config(), num_layers=depth))
    p = profile.pruning
    assert (p.pruning_layer, p.aggregation, p.kv_select) == (
        pruning_layer,
        Aggregation.SUM_MAX,
        KvSelect.HEAD,
    )
    assert (p.aggregation_window, p.deferred_layers, p.observation_window) == (4, 4, 8)
    assert (p.min_keep, p.protect_first) == (0, False)
    if depth == 28:
        assert profile.sparsity.full_layers == (0, 1, 2, 14, 22)


@pytest.mark.parametrize("depth", range(1, 10))
def test_presets_fit_any_depth(depth: int) -> None:
    config = replace(random_config(), num_layers=depth)
    profile = load_profile("paper", config=config)
    assert profile.pruning.pruning_layer - profile.pruning.aggregation_window + 1 >= 0
    assert profile.pruning.deferred_layers <= depth
    assert profile.sparsity.full_layers[-1] < depth


def test_an_unknown_model_gets_the_default_and_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        profile = load_profile(config=random_config())
    assert (profile.name, profile.pruning.protect_first) == ("default", True)
    assert "no profile for a llama model of 6 layers" in caplog.text


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    profile = load_profile(write(tmp_path, GOOD), config=random_config())
    assert (profile.name, profile.pruning.keep_rate) == ("mine", 0.5)
    assert profile.pruning.aggregation is Aggregation.ZSUM_MAX
    assert profile.sources["pruning.keep_rate"] == "t"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("keep_rate", "keep_rat", "unknown key 'keep_rat'; did you mean 'keep_rate'?"),
        ("[sparsity]", "[sparse]", "unknown key 'sparse'"),
        ("[pruning]", "[model]\nlayers = 3\n[pruning]", "unknown key 'layers'"),
        ('{ value = 0.5, source = "t" }', "0.5", "says where it comes from"),
        ("value = 3", "value = 3.5", "must be of type int"),
        ("value = 3", "value = true", "must be of type int"),
        ("value = 0.5", "value = 1.5", "keep_rate must be in"),
        ('"zsum_max"', '"zsum"', "must be one of sum_max"),
        ("value = [0, 1, 2]", "value = 7", "must be of type list"),
        ("value = [0, 1, 2]", "value = [1, 2]", "must begin with layer 0"),
        ('pruning_layer = { value = 3, source = "s" }', "", "pruning_layer"),
        ('source = "a test"', "source = ", "cannot be read"),
        ('source = "a test"', "calibrated = 1", "must be true or false"),
        ('source = "a test"', "evidence = 1", "and `evidence` a table"),
        ("value = 3", "value = 6", "does not fit a model of 6 layers"),
        ("value = 3", "value = 2", "aggregation_window 4"),
        ("value = [0, 1, 2]", "value = [0, 1, 6]", "full layer 6"),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        load_profile(write(tmp_path, GOOD.replace(old, new, 1)), config=random_config())


HASH = "a" * 64
OTHER = "b" * 64
CALIBRATED = f"""
name = "tiny"
source = "measured"
calibrated = true
[model]
family = "llama"
num_layers = 6
hash = "{HASH}"
[pruning]
pruning_layer = {{ value = 3, source = "s" }}
[sparsity]
full_layers = {{ value = [0, 1, 2], source = "v" }}
[evidence]
rho = [0.1, 0.2]
"""


def cached(cache_dir: Path, text: str = CALIBRATED) -> Path:
    path = calibrated_path(HASH, cache_dir)
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_a_calibrated_profile_is_found_by_the_hash_of_the_weights(tmp_path: Path) -> None:
    cached(tmp_path)
    profile = load_profile(config=random_config(), model_hash=HASH, cache_dir=tmp_path)
    assert (profile.name, profile.calibrated) == ("tiny", True)
    assert profile.label == "tiny (calibrated)"
    assert profile.pruning.pruning_layer == 3


def test_what_was_calibrated_comes_before_what_is_shipped(tmp_path: Path) -> None:
    cached(tmp_path, CALIBRATED.replace("num_layers = 6", "num_layers = 30"))
    profile = load_profile(config=SMOLLM2, model_hash=HASH, cache_dir=tmp_path)
    assert profile.name == "tiny"
    other = load_profile(config=SMOLLM2, model_hash=OTHER, cache_dir=tmp_path)
    assert other.name == "smollm2-135m-instruct"


def test_a_calibration_starts_from_what_is_shipped_and_does_not_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        assert base_profile(SMOLLM2).name == "smollm2-135m-instruct"
        assert base_profile(random_config()).name == "default"
    assert not caplog.text


def test_a_profile_of_other_weights_is_refused(tmp_path: Path) -> None:
    path = str(cached(tmp_path))
    with pytest.raises(ConfigError, match="calibrated on the weights aaaaaaaaaaaa, these are bbbb"):
        load_profile(path, config=random_config(), model_hash=OTHER)
    assert load_profile(path, config=random_config(), model_hash=HASH).name == "tiny"


def test_a_profile_under_a_false_name_is_refused(tmp_path: Path) -> None:
    cached(tmp_path, CALIBRATED.replace(HASH, OTHER))
    with pytest.raises(ConfigError, match="does not fit"):
        load_profile(config=random_config(), model_hash=HASH, cache_dir=tmp_path)


def test_a_profile_of_another_layer_count_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, CALIBRATED.replace("num_layers = 6", "num_layers = 7"))
    with pytest.raises(ConfigError, match="made for 7 layers"):
        load_profile(path, config=random_config())


def test_a_shipped_profile_of_other_weights_is_used_but_not_called_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    text = CALIBRATED.replace("[pruning]", "hidden_size = 64\nvocab_size = 512\n[pruning]")
    (tmp_path / "shipped.toml").write_text(text)
    monkeypatch.setattr("shared.model.profile._FOLDER", tmp_path)
    with caplog.at_level(logging.WARNING):
        profile = load_profile(config=random_config(), model_hash=OTHER, cache_dir=tmp_path)
    assert (profile.name, profile.calibrated) == ("tiny", False)
    assert "other weights of this shape" in caplog.text
    assert load_profile(config=random_config(), model_hash=HASH, cache_dir=tmp_path).calibrated


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    before = replace(
        load_profile("smollm2-135m-instruct", config=SMOLLM2),
        name='a "quoted" näme',
        calibrated=True,
        fit=ModelFit(family="llama", num_layers=30, hash=HASH),
    )
    evidence = {
        "samples": 3, "device": "cpu", "layers": list(range(60)), "scored": True,
        "by_layer": {"rho": [0.25, 1e-05]},
    }  # fmt: skip
    text = profile_text(before, evidence=evidence)
    assert read_profile(Path(write(tmp_path, text))) == before
    assert tomllib.loads(text)["evidence"] == evidence
    assert max(map(len, text.splitlines())) < 200


def test_a_profile_for_another_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit a model of 6 layers"):
        load_profile("smollm2-135m-instruct", config=random_config())


@pytest.mark.parametrize("name", ["nope", "../config", "no/where.toml"])
def test_unknown_names(name: str) -> None:
    config: ModelConfig = random_config()
    with pytest.raises(ConfigError, match=r"unknown|cannot be read"):
        load_profile(name, config=config)


def test_the_methods_hash_follows_both_methods_and_nothing_else() -> None:
    profile = base_profile(SMOLLM2)
    hashes = {
        profile.methods_hash,
        replace(profile, pruning=replace(profile.pruning, keep_rate=0.31)).methods_hash,
        replace(profile, sparsity=replace(profile.sparsity, page_budget=77)).methods_hash,
    }
    assert len(hashes) == 3
    assert replace(profile, name="other", source="elsewhere").methods_hash == profile.methods_hash

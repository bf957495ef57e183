"""Profiles: the shipped one, the presets, and what a bad file is told."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.model.config import ModelConfig
from shared.model.profile import load_profile, profile_names
from shared.model.random import random_config
from shared.types.methods import Aggregation, KvSelect

SMOLLM2 = replace(random_config(), num_layers=30, hidden_size=576, vocab_size=49152)

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
    assert (p.pruning_layer, p.aggregation_window, p.deferred_layers) == (17, 4, 4)
    assert (p.observation_window, p.keep_rate, p.min_keep, p.bypass_below) == (8, 0.2, 256, 512)
    assert (p.aggregation, p.kv_select) == (Aggregation.RANK_MAX, KvSelect.SHARED)
    assert p.protect_first
    assert (s.full_layers, s.page_budget, s.recency_pages) == ((0, 1, 2, 14, 22), 16, 4)


def test_every_shipped_value_has_a_source() -> None:
    for name in profile_names():
        profile = load_profile(name, config=SMOLLM2)
        assert profile.source
        assert all(profile.sources.values())


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
        ("value = 3", "value = 6", "does not fit a model of 6 layers"),
        ("value = 3", "value = 2", "aggregation_window 4"),
        ("value = [0, 1, 2]", "value = [0, 1, 6]", "full layer 6"),
    ],
)
def test_bad_files_are_explained(tmp_path: Path, old: str, new: str, text: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        load_profile(write(tmp_path, GOOD.replace(old, new, 1)), config=random_config())


def test_a_profile_for_another_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not fit a model of 6 layers"):
        load_profile("smollm2-135m-instruct", config=random_config())


@pytest.mark.parametrize("name", ["nope", "../config", "no/where.toml"])
def test_unknown_names(name: str) -> None:
    config: ModelConfig = random_config()
    with pytest.raises(ConfigError, match=r"unknown|cannot be read"):
        load_profile(name, config=config)

"""A profile that chooses a page policy and its parameters."""

from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.model.profile import load_profile
from shared.model.profile_toml import profile_text, read_comment, read_profile
from shared.model.random import random_config
from shared.types.methods import PageHeads, PageLayout, SparsityParams

TEXT = """
source = "a test"
[pruning]
pruning_layer = { value = 3, source = "s" }
[sparsity]
full_layers = { value = [0, 1, 2], source = "w" }
page_budget = { value = 8, source = "k" }
recency_pages = { value = 2, source = "l" }
policy = { value = "delta", source = "measured: ahead of quest" }
layout = { value = "segment", source = "measured" }
heads = { value = "kv_head", source = "measured" }
refresh_every = { value = 2, source = "chosen" }
mass = { value = 0.95, source = "chosen" }
correction_layer = { value = 4, source = "paper" }
recent_share = { value = 0.5, source = "paper" }
seed = { value = 7, source = "chosen" }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_parameter_is_read_and_written_with_its_source(tmp_path: Path) -> None:
    profile = read_profile(write(tmp_path, TEXT))
    assert profile.sparsity == SparsityParams(
        full_layers=(0, 1, 2),
        page_budget=8,
        recency_pages=2,
        policy="delta",
        layout=PageLayout.SEGMENT,
        heads=PageHeads.KV_HEAD,
        refresh_every=2,
        mass=0.95,
        correction_layer=4,
        recent_share=0.5,
        seed=7,
    )
    assert profile.sources["sparsity.policy"] == "measured: ahead of quest"
    again = read_profile(write(tmp_path, profile_text(profile, evidence={})))
    assert (again.sparsity, again.sources) == (profile.sparsity, profile.sources)


def test_what_is_not_set_is_not_written(tmp_path: Path) -> None:
    short = "\n".join(line for line in TEXT.splitlines() if not line.startswith(("mass", "corr")))
    profile = read_profile(write(tmp_path, short))
    assert (profile.sparsity.mass, profile.sparsity.correction_layer) == (None, None)
    text = profile_text(profile, evidence={})
    assert "mass" not in text
    assert read_profile(write(tmp_path, text)).sparsity == profile.sparsity


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"delta"', '"dleta"', "'dleta' is unknown; known: dense, delta"),
        ('"segment"', '"segments"', "must be one of board, segment"),
        ('"kv_head"', "2", "must be one of shared, kv_head"),
        ("value = 2, source = \"chosen\"", "value = 0, source = \"chosen\"", "refresh_every"),
        ("value = 2, source = \"chosen\"", "value = 1.5, source = \"chosen\"", "type int"),
        ("0.95", "1.5", r"mass must be in \(0, 1\]"),
        ("0.95", '"all"', "type float or int"),
        ("value = 4", "value = 2", "layer 2 chooses first"),
        ("value = 4", "value = 5", "correction_layer 5"),
        ("value = 0.5", "value = 1.0", r"recent_share must be in \(0, 1\)"),
        ("value = 7", "value = -1", "seed must not be negative"),
    ],
)  # fmt: skip
def test_mistakes_are_refused_before_a_worker_starts(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    assert old in TEXT
    path = write(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(ConfigError, match=says):
        load_profile(str(path), config=random_config())


def test_comments_at_the_top_of_a_profile_can_be_written_again(tmp_path: Path) -> None:
    top = "# Which model this is.\n# Where its values come from.\n"
    path = write(tmp_path, f"{top}{TEXT}\n# not at the top\n")
    assert read_comment(path) == top
    text = profile_text(read_profile(path), evidence={}, comment=read_comment(path))
    assert text.startswith(f"{top}name = ")
    again = write(tmp_path, text)
    assert (read_comment(again), read_profile(again)) == (top, read_profile(path))


def test_a_profile_without_comments_has_none(tmp_path: Path) -> None:
    assert read_comment(write(tmp_path, TEXT.lstrip())) == ""

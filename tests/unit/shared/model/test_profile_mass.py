"""A profile that sets the kept count by mass."""

from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.model.profile_toml import profile_text, read_profile

TEXT = """
source = "a test"
[pruning]
pruning_layer = { value = 3, source = "s" }
mass = { value = 0.9, source = "t" }
min_rate = { value = 0.1, source = "u" }
max_rate = { value = 0.4, source = "v" }
[sparsity]
full_layers = { value = [0, 1, 2], source = "w" }
"""


def test_mass_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    profile = read_profile(path)
    assert profile.pruning.mass == 0.9
    assert (profile.pruning.least_count(1000), profile.pruning.kept_count(1000)) == (100, 400)
    path.write_text(profile_text(profile, evidence={}))
    assert read_profile(path).pruning == profile.pruning


def test_bounds_the_wrong_way_round(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT.replace("0.1", "0.6"))
    with pytest.raises(ConfigError, match="min_rate"):
        read_profile(path)

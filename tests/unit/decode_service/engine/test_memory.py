"""The memory of a decode worker that does not fit its machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decode_service.config import DecodeConfig
from decode_service.engine.memory import allocate
from shared.errors import ConfigError
from shared.model.weights import load_model

SMALL = DecodeConfig(kv_bytes=1 << 20, slab_bytes=1 << 20)
HUGE = 10**15


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"slab_bytes": HUGE}, "slab_bytes"),
        ({"kv_bytes": HUGE}, "kv_bytes"),
        ({"pages_rest": HUGE}, "pages_front, pages_rest"),
    ],
)
def test_what_the_machine_has_not_got_is_a_wrong_setting(
    tiny_model_dir: Path, settings: dict[str, Any], named: str
) -> None:
    loaded = load_model(str(tiny_model_dir))
    with pytest.raises(ConfigError, match="this machine has") as caught:
        allocate(replace(SMALL, **settings), loaded)
    assert caught.value.param == named


def test_what_fits_is_allocated(tiny_model_dir: Path) -> None:
    memory = allocate(SMALL, load_model(str(tiny_model_dir)))
    assert memory.slab.total_bytes == 1 << 20
    assert memory.size.num_bytes <= 1 << 20

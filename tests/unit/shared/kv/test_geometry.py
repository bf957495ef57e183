"""Page maths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE, KvGeometry, pages_for


@given(st.integers(0, 10_000))
def test_pages_hold_the_tokens_and_none_is_spare(tokens: int) -> None:
    pages = pages_for(tokens)
    assert (pages - 1) * PAGE_SIZE < tokens <= pages * PAGE_SIZE or tokens == pages == 0


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_bytes(dtype: str, size: int) -> None:
    geometry = KvGeometry(num_layers=30, num_kv_heads=3, head_dim=64, dtype=dtype)
    assert geometry.itemsize == size
    assert geometry.token_bytes == 2 * 3 * 64 * size
    assert geometry.page_bytes == 16 * geometry.token_bytes
    assert geometry.kv_bytes(100) == 100 * geometry.token_bytes


@pytest.mark.parametrize(
    "changes", [{"dtype": "int8"}, {"num_layers": 0}, {"num_kv_heads": 0}, {"head_dim": 0}]
)
def test_impossible_shapes_are_refused(changes: dict[str, object]) -> None:
    values: dict[str, object] = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1}
    with pytest.raises(ConfigError):
        KvGeometry(**(values | changes))  # type: ignore[arg-type]

"""Sizes that steps are rounded up to: few, and never too small."""

from hypothesis import given
from hypothesis import strategies as st

from decode_service.engine.batched.step_shape import StepShape, shape_for


def test_typical_sizes():
    def shape(rows, tokens, choice):
        return shape_for(rows=rows, tokens=tokens, choice=choice, max_rows=48, max_tokens=131_072)

    assert shape(64 - 20, 18_433, 64) == StepShape(rows=48, tokens=32_768, choice=64)
    assert shape(1, 3, 0) == StepShape(rows=1, tokens=4096, choice=0)
    assert shape(3, 4097, 17) == StepShape(rows=4, tokens=8192, choice=32)
    assert shape(1, 131_072, 8192) == StepShape(rows=1, tokens=131_072, choice=8192)


@given(
    rows=st.integers(1, 64),
    tokens=st.integers(1, 300_000),
    choice=st.integers(0, 20_000),
    slack=st.integers(0, 5_000),
)
def test_a_shape_holds_its_step(rows, tokens, choice, slack):
    choice = min(choice, -(-tokens // 16))
    shape = shape_for(
        rows=rows, tokens=tokens, choice=choice, max_rows=64, max_tokens=tokens + slack
    )
    assert rows <= shape.rows <= 64
    assert tokens <= shape.tokens < tokens + slack + 16
    assert (choice <= shape.choice <= shape.pages) if choice else shape.choice == 0


def test_a_choice_is_cut_by_its_own_size():
    shape = StepShape(rows=64, tokens=32_768, choice=64)
    whole = shape.plan(kv_heads=2, head_dim=128, reads_choice=False)
    chosen = shape.plan(kv_heads=2, head_dim=128, reads_choice=True)
    assert whole.splits == 4
    assert chosen.splits <= 4

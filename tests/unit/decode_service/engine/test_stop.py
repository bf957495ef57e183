"""When an answer ends."""

from decode_service.engine.stop import StopTracker
from shared.types.sampling import FinishReason, StopConditions


class Letters:
    """Token i is the i-th letter."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("a") + i) for i in ids)


def tracker(*, context_left: int = 100, **stop: object) -> StopTracker:
    conditions = StopConditions(**({"max_tokens": 50} | stop))  # type: ignore[arg-type]
    return StopTracker(conditions, context_left=context_left, tokenizer=Letters())  # type: ignore[arg-type]


def feed(stops: StopTracker, ids: list[int]) -> tuple[int, str, FinishReason] | None:
    for index, token_id in enumerate(ids):
        verdict = stops.observe(token_id)
        if verdict is not None:
            return index, verdict.match, verdict.reason
    return None


def test_stop_id_is_named_in_decimal() -> None:
    assert feed(tracker(token_ids=(7,)), [1, 7, 2]) == (1, "7", FinishReason.STOP)


def test_first_token_counts_for_the_limit() -> None:
    assert feed(tracker(max_tokens=3), [1, 2, 3, 4]) == (2, "", FinishReason.LENGTH)
    assert feed(tracker(max_tokens=1), [1]) == (0, "", FinishReason.LENGTH)


def test_context_end_is_a_length_end() -> None:
    assert feed(tracker(context_left=2), [1, 2, 3]) == (1, "", FinishReason.LENGTH)


def test_stop_wins_over_the_limit_at_the_same_token() -> None:
    assert feed(tracker(max_tokens=2, token_ids=(9,)), [1, 9]) == (1, "9", FinishReason.STOP)


def test_no_id_or_string_ends_before_min_tokens() -> None:
    assert feed(tracker(token_ids=(7,), min_tokens=3), [7, 7, 7]) == (2, "7", FinishReason.STOP)
    early = tracker(strings=("ab",), min_tokens=4)
    assert feed(early, [0, 1, 5, 5, 0, 1]) == (5, "ab", FinishReason.STOP)


def test_limit_holds_below_min_tokens() -> None:
    assert feed(tracker(max_tokens=4, context_left=2, min_tokens=4), [1, 2]) == (
        1,
        "",
        FinishReason.LENGTH,
    )


def test_stop_string_across_tokens_ends_at_the_exact_token() -> None:
    assert feed(tracker(strings=("bcd", "zz")), [0, 1, 2, 3, 4]) == (3, "bcd", FinishReason.STOP)


def test_nothing_ends() -> None:
    assert feed(tracker(strings=("xyz",), token_ids=(20,)), [1, 2, 3]) is None

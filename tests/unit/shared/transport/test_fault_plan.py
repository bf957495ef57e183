"""Plans of faults: what can be written, what is drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.transport.fault_plan import (
    CHUNK_KINDS,
    CHUNK_MOMENTS,
    Fault,
    FaultKind,
    FaultOdds,
    ListedFaults,
    Moment,
    SeededFaults,
    parse_faults,
)

KILL = Fault(kind=FaultKind.KILL, moment=Moment.ACK)
DROP = Fault(kind=FaultKind.DROP, moment=Moment.FIRST)

faults = st.builds(
    lambda kind, moment, delay: Fault(
        kind=kind,
        moment=moment if kind not in CHUNK_KINDS or moment in CHUNK_MOMENTS else Moment.LAST,
        delay_s=delay if kind is FaultKind.DELAY else 1.0,
    ),
    st.sampled_from(FaultKind),
    st.sampled_from(Moment),
    st.integers(1, 40).map(lambda quarters: quarters / 4),
)


def drawn(plan: SeededFaults, transfers: int) -> list[tuple[Fault, ...]]:
    return [plan.next_transfer() for _ in range(transfers)]


def test_a_list_is_used_up_in_order() -> None:
    plan = ListedFaults(KILL, None, DROP)
    assert [plan.next_transfer() for _ in range(5)] == [(KILL,), (), (DROP,), (), ()]


@given(st.lists(st.tuples(faults, st.integers(1, 10)), min_size=1, max_size=4), st.integers(0, 99))
def test_the_text_of_a_plan_gives_the_same_plan(parts: list[tuple[Fault, int]], seed: int) -> None:
    odds = [FaultOdds(fault=fault, share=tenths / 10) for fault, tenths in parts]
    plan = SeededFaults(odds, seed=seed)
    again = parse_faults(plan.text.split(","))
    assert again.text == plan.text
    assert drawn(again, 20) == drawn(plan, 20)


def test_shares_come_out_about_right_and_do_not_depend_on_each_other() -> None:
    rare = FaultOdds(fault=KILL, share=0.05)
    alone = drawn(SeededFaults([rare], seed=3), 2_000)
    assert 60 < sum(KILL in each for each in alone) < 140
    for share in (0.2, 0.9):
        both = SeededFaults([FaultOdds(fault=DROP, share=share), rare], seed=3)
        other = SeededFaults([FaultOdds(fault=DROP, share=1.0), rare], seed=3)
        assert [KILL in each for each in drawn(both, 200)] == [
            KILL in each for each in drawn(other, 200)
        ]


def test_without_a_share_it_always_comes() -> None:
    plan = parse_faults(["delay:2.5@grant"])
    wanted = Fault(kind=FaultKind.DELAY, moment=Moment.GRANT, delay_s=2.5)
    assert drawn(plan, 3) == [(wanted,)] * 3
    assert plan.text == "delay:2.5@grant=1, seed=0"


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (["kill"], r"write KIND@MOMENT=SHARE"),
        (["kil@ack"], r"kinds are drop, delay"),
        (["kill@end"], r"moments are hello, grant"),
        (["kill@ack=0"], r"above 0 and at most 1"),
        (["kill@ack=1.5"], r"above 0 and at most 1"),
        (["kill@ack=1.5.5"], r"no number"),
        (["kill:3@ack"], r"only a delay has seconds"),
        (["drop@seal"], r"needs a chunk"),
        (["seed=4"], r"name at least one fault"),
        (["seed=x", "kill@ack"], r"write KIND@MOMENT=SHARE"),
    ],
)
def test_what_cannot_be_made_is_refused_with_advice(entries: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        parse_faults(entries)
    assert caught.value.param == "faults"

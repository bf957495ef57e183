"""Property: whatever becomes of the answers to one prompt, each page is freed exactly once."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.engine.handoffs import Reservation
from shared.kv.geometry import pages_for
from shared.types.handoff import HandoffKey
from tests.support.decode_parts import TableParts, make_parts, reserve_spec

KEY = HandoffKey("h")
NEW = 8
ADOPT_S = 10.0


def adopted(parts: TableParts, *, prompt_tokens: int, branches: int) -> Reservation:
    """A handoff whose answers wait for their calls."""
    spec = reserve_spec(KEY, prompt_tokens=prompt_tokens)
    granted = parts.table.reserve(replace(spec, num_branches=branches))
    assert isinstance(granted, Reservation)
    slot, generation = granted.lease.slot, granted.lease.generation
    parts.table.write(slot=slot, generation=generation, offset=0, data=memoryview(b"kv"))
    parts.table.writer_closed(slot, generation, clean=True)
    parts.table.begin_commit(granted)
    granted.adopted = parts.adopted(granted)
    parts.table.end_commit(granted)
    return granted


@given(
    prompt_tokens=st.integers(1, 50),
    branches=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_pages_of_branches(prompt_tokens: int, branches: int, data: st.DataObject) -> None:
    parts = make_parts(pages=32, adopt_lease_s=ADOPT_S)
    table = parts.table
    granted = adopted(parts, prompt_tokens=prompt_tokens, branches=branches)
    whole, own = pages_for(prompt_tokens + NEW - 1), pages_for(15 + NEW - 1)
    waiting, running = set(range(branches)), set[int]()
    while waiting or running:
        held = sorted(b for b in waiting | running if b > 0)
        for pool in parts.cache.pools.values():
            assert pool.pages.num_used == whole + own * len(held)
        assert table.find(KEY) is granted
        assert granted.adopted is not None
        for branch in sorted(running):
            check_table(granted, branch, prompt_tokens=prompt_tokens)
        acts = ["abort", "claim", "give_up", "expire"] if waiting else []
        act = data.draw(st.sampled_from([*acts, *(["release"] if running else [])]))
        if act == "claim":
            branch = data.draw(st.sampled_from(sorted(waiting)))
            assert table.claim(KEY, branch) is granted
            waiting.remove(branch)
            running.add(branch)
        elif act == "release":
            branch = data.draw(st.sampled_from(sorted(running)))
            table.release(granted, branch)
            running.remove(branch)
        elif act == "give_up":
            branch = data.draw(st.sampled_from(sorted(waiting)))
            table.give_up(KEY, branch)
            waiting.remove(branch)
        elif act == "expire":
            parts.clock.now += ADOPT_S + 1
            table.reap()
            waiting.clear()
        else:
            table.abort(KEY)
            waiting.clear()
        table.check_integrity()
    assert not table.holds(KEY)
    assert table.idle
    parts.cache.check_idle()


def check_table(granted: Reservation, branch: int, *, prompt_tokens: int) -> None:
    """A branch reads the prompt's whole pages and shares no other page with anybody."""
    assert granted.adopted is not None
    shared = prompt_tokens // 16
    mine = granted.adopted.branches[branch].pages.rest.pages
    assert len(mine) * 16 >= prompt_tokens + NEW - 1
    assert mine[:shared] == granted.pages.rest.pages[:shared]
    for index, other in enumerate(granted.adopted.branches):
        if index != branch:
            assert not set(mine[shared:]) & set(other.pages.rest.pages)

"""Pages are conserved whatever rows come and go, and no two rows ever share one."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from decode_service.engine.kv_cache import LengthGroup, PagedKvCache, SequencePages
from shared.kv.geometry import KvGeometry, pages_for

TOKENS = st.integers(0, 90)


class PagesComeAndGo(RuleBasedStateMachine):
    """A small cache against a list of what was handed out."""

    def __init__(self) -> None:
        super().__init__()
        geometry = KvGeometry(num_layers=2, num_kv_heads=1, head_dim=1)
        self.cache = PagedKvCache(
            geometry, whole_layers=1, pages_front=9, pages_rest=7, poison=True
        )
        self.held: list[SequencePages] = []

    @rule(front=TOKENS, rest=TOKENS)
    def reserve(self, front: int, rest: int) -> None:
        before = {group: pool.pages.num_free for group, pool in self.cache.pools.items()}
        pages = self.cache.reserve(front_tokens=front, rest_tokens=rest)
        fits = (
            pages_for(front) <= before[LengthGroup.FRONT]
            and pages_for(rest) <= before[LengthGroup.REST]
        )
        assert (pages is not None) == fits
        if pages is not None:
            assert len(pages.front.pages) == pages_for(front)
            assert len(pages.rest.pages) == pages_for(rest)
            self.held.append(pages)

    @precondition(lambda self: bool(self.held))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.cache.release(self.held.pop(index))

    @invariant()
    def every_page_is_free_or_held_once(self) -> None:
        self.cache.check_integrity()
        for group, pool in self.cache.pools.items():
            pages = [page for held in self.held for page in held.of(group).pages]
            assert len(pages) == len(set(pages)) == pool.pages.num_used
            assert pool.pages.num_used + pool.pages.num_free == pool.pages.num_pages

    @invariant()
    def a_start_means_one_ascending_run(self) -> None:
        for held in self.held:
            for group in LengthGroup:
                of_group = held.of(group)
                if of_group.start is not None:
                    run = range(of_group.start, of_group.start + len(of_group.pages))
                    assert of_group.pages == tuple(run)


TestPagesComeAndGo = PagesComeAndGo.TestCase
TestPagesComeAndGo.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

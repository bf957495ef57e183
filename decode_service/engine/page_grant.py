"""All pages of a request at once: those of the prompt, and those that each answer grows into."""

from collections.abc import Iterable

from decode_service.engine.admission import GroupTokens
from decode_service.engine.handoffs import Reservation
from decode_service.engine.kv_cache import PagedKvCache, SequencePages


def take_pages(
    cache: PagedKvCache, tokens: GroupTokens, *, num_branches: int
) -> list[SequencePages] | None:
    """Pages of every answer, or None when there are too few; then none is taken.

    The first answer's hold the prompt too. A further one's begin with a copy of the prompt's last,
    partly filled page.
    """
    taken: list[SequencePages] = []
    for branch in range(num_branches):
        front, rest = (tokens.branch, tokens.branch) if branch else (tokens.front, tokens.rest)
        pages = cache.reserve(front_tokens=front, rest_tokens=rest)
        if pages is None:
            for held in taken:
                cache.release(held)
            return None
        taken.append(pages)
    return taken


def free_own(cache: PagedKvCache, granted: Reservation, branches: Iterable[int]) -> None:
    """Gives back what further answers grew into; the prompt's pages stay."""
    for branch in branches:
        own = granted.own_pages.pop(branch, None)
        if own is not None:
            cache.release(own)


def free_all(cache: PagedKvCache, granted: Reservation) -> None:
    """Gives everything back: all answers are over."""
    cache.release(granted.pages)
    free_own(cache, granted, list(granted.own_pages))

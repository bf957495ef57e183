"""Free list of page numbers; knows nothing of the tensors behind them."""

from collections.abc import Iterable, Sequence
from heapq import nsmallest

from shared.errors import ConfigError, InternalError


class PagePool:
    """Hands out pages 0..num_pages-1, in one ascending run when there is one.

    Args:
        num_pages: pages in all, at least 1.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 1:
            raise ConfigError(
                f"a page pool needs at least one page, not {num_pages}: give the cache more bytes"
            )
        self.num_pages = num_pages
        self._free = bytearray(b"\x01") * num_pages
        self._num_free = num_pages

    @property
    def num_free(self) -> int:
        """Pages that can be handed out."""
        return self._num_free

    @property
    def num_used(self) -> int:
        """Pages that are handed out."""
        return self.num_pages - self._num_free

    def allocate(self, n: int) -> list[int] | None:
        """Takes `n` pages, ascending.

        The first contiguous run that is long enough, else the `n` lowest free pages, else None
        (nothing is taken).
        """
        assert n >= 0, "a negative number of pages"
        if n > self._num_free:
            return None
        start = self._free.find(b"\x01" * n)
        if start >= 0:
            pages = list(range(start, start + n))
        else:
            pages = nsmallest(n, (page for page, free in enumerate(self._free) if free))
        self._mark(pages, value=0)
        self._num_free -= n
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Gives pages back; all of them or, when one is refused, none.

        Raises:
            InternalError: a page is unknown, already free, or named twice.
        """
        seen: set[int] = set()
        for page in pages:
            if not 0 <= page < self.num_pages or self._free[page] or page in seen:
                raise InternalError(
                    f"page {page} of {self.num_pages} was freed but is not held: "
                    "two owners believe they hold it; report this"
                )
            seen.add(page)
        self._mark(pages, value=1)
        self._num_free += len(seen)

    def check_integrity(self) -> None:
        """Verifies that free and used pages add up.

        Raises:
            InternalError: they do not.
        """
        counted = self._free.count(1)
        if counted != self._num_free or counted + self._free.count(0) != self.num_pages:
            raise InternalError(
                f"page pool counts {self._num_free} free pages but marks {counted} of "
                f"{self.num_pages}: pages were lost; report this"
            )

    def _mark(self, pages: Iterable[int], *, value: int) -> None:
        for page in pages:
            self._free[page] = value

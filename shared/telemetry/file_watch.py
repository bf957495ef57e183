"""Notices that files were replaced or rewritten, by looking when asked."""

from pathlib import Path

_Signature = tuple[tuple[int, int, int] | None, ...]


class FileWatch:
    """Some files and how they looked last; a look costs a stat of each.

    Args:
        paths: the files; symbolic links are followed, so a swapped link is a change.
    """

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether any of them looks different from the last time this was asked."""
        now = self._look()
        if now == self._seen:
            return False
        self._seen = now
        return True

    def _look(self) -> _Signature:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Time, size and inode; None while the file is away."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino

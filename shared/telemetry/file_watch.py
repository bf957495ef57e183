"""Notices that files were replaced or rewritten, by looking when asked."""

from pathlib import Path

_Look = tuple[int, int, int, int] | None


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

    def _look(self) -> tuple[_Look, ...]:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> _Look:
    """Times, size and inode; None while the file is away."""
    try:
        found = path.stat()
    except OSError:
        return None
    # New permissions leave the content's time alone, and make an unreadable file readable.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

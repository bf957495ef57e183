"""The result of one check of `tandem doctor`."""

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    """Works, but less than it could; or an optional part is absent."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table."""

    name: str
    """What was checked."""
    status: Status
    """How it ended."""
    detail: str
    """What was found."""
    remedy: str = ""
    """What to do; empty when nothing is."""

    def as_dict(self) -> dict[str, str]:
        """The row as plain text values."""
        return {
            "name": self.name,
            "status": self.status.value,
            "detail": self.detail,
            "remedy": self.remedy,
        }

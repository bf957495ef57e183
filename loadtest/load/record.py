"""What the generator leaves to be summed up."""

from dataclasses import dataclass, field

from loadtest.load.outcome import Outcome
from loadtest.load.overload import Stop


@dataclass(slots=True)
class Record:
    """Grows while a run goes on."""

    planned: int
    """Requests that should begin, all turns of conversations included; 0 in a closed loop, which
    plans none."""
    outcomes: list[Outcome] = field(default_factory=list)
    """In order of their ends."""
    complete: bool = False
    """The run was not broken off."""
    stop: Stop | None = None
    """It was hopeless and was ended early."""

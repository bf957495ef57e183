"""Whether a decode worker will most likely grant room, by what it answered last.

Where it most likely will, a prompt is computed while it is asked: the answer would cost every first
token a round trip. A worker that said anything but yes is asked first again, so only prompts that
began before that answer are computed in vain.
"""

from prefill_service.engine.job import Target


class GrantHistory:
    """The last answer of each decode worker; all methods belong to one loop."""

    def __init__(self) -> None:
        self._granting: set[str] = set()

    def likely(self, target: Target) -> bool:
        """Whether its last answer was a grant; False for one that was never asked."""
        return target.address in self._granting

    def granted(self, target: Target) -> None:
        """It granted room."""
        self._granting.add(target.address)

    def refused(self, target: Target) -> None:
        """It was busy, refused, or could not be reached."""
        self._granting.discard(target.address)

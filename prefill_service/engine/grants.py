"""Whether a decode worker will most likely grant room, by what it answered last.

Where it most likely will, a prompt is computed while it is asked: the answer would cost every first
token a round trip. A worker that said anything but yes is asked first again, so only prompts that
began before that answer are computed in vain. Nobody tells a prefill worker which decode workers
are gone, so only as many are remembered as pairs are.
"""

from collections import OrderedDict

from prefill_service.engine.job import Target
from shared.transport.lane_records import MAX_PAIRS


class GrantHistory:
    """The last answer of each decode worker; all methods belong to one loop."""

    def __init__(self) -> None:
        self._granting: OrderedDict[str, None] = OrderedDict()

    def likely(self, target: Target) -> bool:
        """Whether its last answer was a grant; False for one that was never asked."""
        return target.address in self._granting

    def granted(self, target: Target) -> None:
        """It granted room; of more than MAX_PAIRS the one that did so longest ago is forgotten."""
        self._granting[target.address] = None
        self._granting.move_to_end(target.address)
        while len(self._granting) > MAX_PAIRS:
            self._granting.popitem(last=False)

    def refused(self, target: Target) -> None:
        """It was busy, refused, or could not be reached."""
        self._granting.pop(target.address, None)

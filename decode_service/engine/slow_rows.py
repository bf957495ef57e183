"""Answers that batched kernels leave to PyTorch, row by row: counted, logged, told by health."""

from collections import Counter
from collections.abc import Callable

import structlog

from decode_service.engine.batched.row_plan import LeftOut, chooses_pages_once, left_out
from decode_service.engine.sequence import Sequence
from shared.model.profile_record import ModelProfile
from shared.types.methods import KvSelect
from shared.types.page_policies import PagePolicyName

_ADVICE = {
    LeftOut.POLICY: "their page policy, or a setting of delta, has no kernel: choose delta with "
    "heads shared, refresh_every 1 and no mass",
    LeftOut.KV_SELECT_HEAD: "their KV heads kept other tokens each (kv_select head), and delta's "
    "kernels choose for all of them: choose kv_select shared in the profile",
}

_log = structlog.get_logger(__name__)


class SlowRows:
    """Counts them; on the event loop.

    Args:
        kernels: whether there are kernels at all; without them no row is left out.
        on_row: told of each, by its reason.
    """

    def __init__(self, *, kernels: bool, on_row: Callable[[str], None]) -> None:
        self._kernels = kernels
        self._on_row = on_row
        self._counts: Counter[LeftOut] = Counter()

    def begun(self, row: Sequence) -> None:
        """An answer begins."""
        reason = left_out(row) if self._kernels else None
        if reason is None:
            return
        self._on_row(reason.value)
        self._counts[reason] += 1
        if self._counts[reason] == 1:
            _log.warning(
                "an answer is computed row by row in PyTorch, which is slow; more like it are "
                "counted and not logged",
                handoff_id=row.key.handoff_id,
                reason=reason.value,
                why=_ADVICE[reason],
            )

    @property
    def note(self) -> str:
        """For the health page; empty while no answer was left out."""
        return "; ".join(
            f"answers computed row by row in PyTorch so far: {count}; {_ADVICE[reason]}"
            for reason, count in self._counts.items()
        )

    def outlook(self, profile: ModelProfile) -> str:
        """For the banner: which answers of requests that ask for nothing else will be left out."""
        name = PagePolicyName(profile.sparsity.policy)
        if not self._kernels or name is PagePolicyName.DENSE:
            return "none"
        if name is not PagePolicyName.DELTA:
            return f"all: {_ADVICE[LeftOut.POLICY]}"
        if not chooses_pages_once(profile.sparsity):
            return f"all: {_ADVICE[LeftOut.POLICY]}"
        if profile.pruning.kv_select is KvSelect.HEAD:
            return f"those of pruned prompts: {_ADVICE[LeftOut.KV_SELECT_HEAD]}"
        return "none"

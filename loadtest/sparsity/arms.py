"""What is compared: every page policy at every budget, and ablations of DELTA."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decode_service.sparsity.base import LayerRole
from loadtest.origin import plain_fields
from loadtest.sparsity.records import DENSE, FULL, WHOLE, ArmFact
from shared.errors import ConfigError
from shared.kv.geometry import PAGE_SIZE
from shared.types.methods import PruningParams, SparsityParams
from shared.types.page_policies import PagePolicyName

POLICIES = "policies"
"""Group of the arms that differ in their policy and budget alone."""
_MOST_RECENT = 8
_LETTERS = {LayerRole.FULL: "W", LayerRole.DELTA: "D", LayerRole.SPARSE: "S"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to decode."""

    name: str
    """As tables show it."""
    params: SparsityParams | None
    """None: dense."""
    prefill: str = WHOLE
    """What it continues."""
    group: str = POLICIES
    """What it is compared within."""

    @property
    def budget(self) -> int:
        """Tokens a sparse layer may read; 0 for dense."""
        return 0 if self.params is None else self.params.page_budget * PAGE_SIZE

    @property
    def identity(self) -> tuple[str, int, str, str]:
        """What names it in a fact's key."""
        return (self.name, self.budget, self.prefill, self.group)

    def fact(
        self, *, run: int, roles: Sequence[LayerRole], pruning: PruningParams | None
    ) -> ArmFact:
        """Its record."""
        return ArmFact(
            run=run,
            arm=self.name,
            budget=self.budget,
            prefill=self.prefill,
            group=self.group,
            policy=DENSE if self.params is None else self.params.policy,
            roles="".join(_LETTERS[role] for role in roles),
            sparsity={} if self.params is None else plain_fields(self.params),
            pruning={} if pruning is None else plain_fields(pruning),
        )


FULL_ARM = Arm(name=FULL, params=None)
"""Dense decode over the whole prompt, where other arms continue a pruned one."""


def dense_arm(prefill: str = WHOLE) -> Arm:
    """Dense decode over what a prefill kept."""
    return Arm(name=DENSE, params=None, prefill=prefill)


def policy_arms(
    base: SparsityParams, *, names: Sequence[str], budgets: Sequence[int], prefill: str = WHOLE
) -> list[Arm]:
    """Each named policy at each budget, all with the profile's full layers where they use them.

    Raises:
        ConfigError: no budget, or one too small for any policy.
    """
    if not budgets:
        raise ConfigError("no page budget was given: give at least one")
    wanted = names or [name.value for name in PagePolicyName]
    return [
        Arm(name=name, params=replace(at_budget(base, pages), policy=name), prefill=prefill)
        for name in dict.fromkeys(wanted)
        if name != DENSE
        for pages in budgets
    ]


def at_budget(base: SparsityParams, pages: int) -> SparsityParams:
    """The parameters at a page budget, a quarter of it recent, but no more than 8 pages."""
    recent = max(1, min(_MOST_RECENT, pages // 4, pages - 2))
    return replace(base, page_budget=pages, recency_pages=recent)

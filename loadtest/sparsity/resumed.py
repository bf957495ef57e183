"""What a resumed study goes on with must have been measured with the sizes that it has itself.

Keys of facts leave out what is the same for a whole folder: steps, tokens and the keep rate.
"""

from collections.abc import Iterable

from loadtest.facts import FactStore, Key
from loadtest.sparsity.arms import Arm
from loadtest.sparsity.records import WHOLE, ArmFact, ForcedFact, GenerationFact
from shared.errors import ConfigError


def check_sizes(store: FactStore, keys: Iterable[Key], *, size: int) -> None:
    """Checks the facts of a text that a folder holds already.

    Args:
        store: the folder.
        keys: of the text's facts, known or not.
        size: decode steps, or tokens of a free generation, that this study would take.

    Raises:
        ConfigError: one was measured over another number.
    """
    for key in keys:
        fact = store.get(key)
        known = size
        if isinstance(fact, ForcedFact):
            known = fact.steps
        elif isinstance(fact, GenerationFact):
            known = fact.tokens
        if known != size:
            raise _differs(store, f"{known} decode steps or tokens", f"{size}")


def check_keep_rate(store: FactStore, arms: Iterable[Arm], *, keep_rate: float) -> None:
    """Checks the pruned arms that a folder holds already.

    Raises:
        ConfigError: one of them continues prompts that were pruned at another rate.
    """
    for arm in arms:
        fact = store.get((ArmFact.kind, *arm.identity)) if arm.prefill != WHOLE else None
        known = fact.pruning.get("keep_rate") if isinstance(fact, ArmFact) else None
        if known not in (None, keep_rate):
            raise _differs(store, f"keep_rate {known}", f"{keep_rate}")


def _differs(store: FactStore, known: str, wanted: str) -> ConfigError:
    return ConfigError(
        f"{store.path} holds results of {known}, and this run would measure {wanted}: such results "
        "do not mix; give the flags that it was begun with, or another --out"
    )

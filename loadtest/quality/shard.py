"""One evaluation split over several processes or machines; their folders are merged afterwards."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from shared.errors import ConfigError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A `count`-th of the work.

    Raises:
        ConfigError: the number is outside 1 to `count`.
    """

    number: int
    """From 1."""
    count: int
    """How many there are."""

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ConfigError(
                f"shard {self.number} of {self.count}: give a number from 1 to how many there are"
            )

    def own(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items of this shard; every item belongs to exactly one.

        Each round of `count` items is dealt one place further than the one before, or a shard could
        get nothing but the long ones of prompts whose lengths take turns.
        """
        for index, item in enumerate(items):
            if (index + index // self.count) % self.count == self.number - 1:
                yield item

    def part_of(self, wanted: int) -> int:
        """How many of `wanted` fall to it, rounded up."""
        return math.ceil(wanted / self.count)


WHOLE = Shard(number=1, count=1)
"""All of the work."""


def parse_shard(text: str) -> Shard:
    """Reads `number/count`, as in `2/8`.

    Raises:
        ConfigError: it is no such pair.
    """
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    if found is None:
        raise ConfigError(f"shard {text!r}: write number/count, for example 2/8")
    return Shard(number=int(found[1]), count=int(found[2]))

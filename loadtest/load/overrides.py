"""What every request of a run asks of the pair instead of the profile's choice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shared.errors import ConfigError, InvalidRequestError
from shared.types.options import Mode, RequestOptions

LEAST_PAGE_BUDGET = 3
"""The first page, a recent one and one to choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Fields of `tandem` in REST and of `options` in gRPC; None leaves the profile's value.

    Raises:
        ConfigError: a value that the gateway would refuse.
    """

    mode: Mode | None = None
    """Which methods run."""
    keep_rate: float | None = None
    """Share of prompt tokens kept."""
    page_budget: int | None = None
    """Pages read by a layer that chooses."""

    def __post_init__(self) -> None:
        try:
            self.options.check_pruning()
        except InvalidRequestError as error:
            raise ConfigError(str(error)) from error
        if self.page_budget is not None and self.page_budget < LEAST_PAGE_BUDGET:
            raise ConfigError(
                f"page_budget is {self.page_budget}: the first page, a recent one and one to "
                f"choose are {LEAST_PAGE_BUDGET}; give at least that"
            )

    @property
    def options(self) -> RequestOptions:
        """As the wire knows them."""
        return RequestOptions(
            mode=self.mode or Mode.AUTO, keep_rate=self.keep_rate, page_budget=self.page_budget
        )

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Overrides":
        """What `to_json` wrote."""
        mode = found.get("mode")
        return cls(**(dict(found) | {"mode": None if mode is None else Mode(mode)}))

    def to_json(self) -> dict[str, Any]:
        """The fields that are set, as a REST body has them."""
        given = {
            "mode": None if self.mode is None else self.mode.value,
            "keep_rate": self.keep_rate,
            "page_budget": self.page_budget,
        }
        return {name: value for name, value in given.items() if value is not None}


NO_OVERRIDES = Overrides()
"""The profile decides."""

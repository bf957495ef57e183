"""The interfaces of discovery: reading who is alive, and saying that one is."""

from typing import Protocol

from shared.discovery.card import WorkerCard


class Discovery(Protocol):
    """Keeps a current list of workers; reading it never waits."""

    @property
    def degraded(self) -> bool:
        """True while the source is lost and the list is what was last known."""

    async def start(self) -> None:
        """Reads the list once, then keeps it fresh; a lost source does not raise."""

    def cards(self, role: str) -> list[WorkerCard]:
        """Live workers of a role, ordered by worker id."""

    async def close(self) -> None:
        """Stops; twice is fine."""


class Publisher(Protocol):
    """Keeps one worker's card known."""

    async def publish(self, card: WorkerCard) -> None:
        """Makes a card known at once and renews it until the next `publish` or `withdraw`."""

    async def withdraw(self) -> None:
        """Takes the card back; nothing published is fine."""

    async def close(self) -> None:
        """Withdraws and stops; twice is fine."""

"""Locust's side: users that serve the generator's run, and a shape that ends it."""

from typing import ClassVar

from locust import LoadTestShape, User, task
from locust.exception import StopUser

from loadtest.load.generator import Generator


class LoadUser(User):
    """Serves the run; which protocol it speaks is the generator's to know."""

    generator: ClassVar[Generator]
    """Set when Locust has read its flags."""

    @task
    def serve(self) -> None:
        """All requests of this user."""
        self.generator.serve()
        raise StopUser


class LoadShape(LoadTestShape):
    """All users at once, until the last one has nothing more to ask.

    How many requests come is the schedule's to say, so Locust's --users, --spawn-rate and
    --run-time do not.
    """

    def tick(self) -> tuple[int, float] | None:
        """Users and how many are started a second; None ends the run."""
        generator = LoadUser.generator
        return None if generator.over else (generator.users, generator.users)

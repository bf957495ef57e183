"""The table of policies."""

from collections.abc import Callable

from gateway.balancing.base import Balancer
from gateway.balancing.least_loaded import LeastLoaded
from gateway.balancing.power_of_two import PowerOfTwo
from gateway.balancing.round_robin import RoundRobin
from shared.registry.registry import Registry


def balancers() -> Registry[Callable[[], Balancer]]:
    """All policies by name."""
    table: Registry[Callable[[], Balancer]] = Registry("balancer")
    table.register("least_loaded", LeastLoaded)
    table.register("power_of_two", PowerOfTwo)
    table.register("round_robin", RoundRobin)
    return table

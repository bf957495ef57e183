"""The address that a worker tells others."""

from shared.errors import ConfigError

_EVERY_ADDRESS = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104  compared with, never bound


def advertised_address(*, bound: str, host: str, wanted: str, published: bool) -> str:
    """The operator's choice, else where the worker listens.

    Args:
        bound: host:port that it listens on.
        host: host that it was told to listen on.
        wanted: the operator's choice; may be empty.
        published: others will read it from discovery.

    Raises:
        ConfigError: others would be told an address that means themselves.
    """
    if wanted:
        return wanted
    if published and host in _EVERY_ADDRESS:
        raise ConfigError(
            f"this worker listens on every address ({host}) and would tell others none that they "
            "can reach; set advertise_address to its host:port as seen from outside",
            param="advertise_address",
        )
    return bound

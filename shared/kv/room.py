"""Room for the memory that a worker allocates at its start; what does not fit is misconfigured."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psutil

from shared.errors import ConfigError


def check_room(asked: Mapping[str, int]) -> None:
    """Refuses more memory of the host than the machine has.

    The host gives out memory that it has not got, and kills the process that later uses it.

    Args:
        asked: bytes by the setting that asks for them.

    Raises:
        ConfigError: together they are more than the machine's memory.
    """
    total, wanted = psutil.virtual_memory().total, sum(asked.values())
    if wanted > total:
        parts = " and ".join(f"{setting} ({nbytes} bytes)" for setting, nbytes in asked.items())
        raise ConfigError(
            f"there is no room for {parts}: this machine has {total} bytes of memory in all; lower "
            + " or ".join(asked),
            param=max(asked, key=lambda setting: asked[setting]),
        )


@contextmanager
def allocating(setting: str, *, nbytes: int, place: str) -> Iterator[None]:
    """Turns what an allocation fails with into a wrong setting.

    Args:
        setting: that asks for the memory.
        nbytes: how much.
        place: the device that should give it.

    Raises:
        ConfigError: the allocation failed.
    """
    try:
        yield
    except (MemoryError, OSError, RuntimeError) as error:  # Python's, the system's, torch's
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ConfigError(
            f"{place} did not give the {nbytes} bytes of {setting} ({said}): most likely less is "
            f"left there; lower {setting}, or end what else takes memory",
            param=setting,
        ) from error

"""Memory that there is not: what is said, before it is asked for and when it is refused."""

from types import SimpleNamespace

import psutil
import pytest
import torch

from shared.errors import ConfigError
from shared.kv.memory import HostMemory
from shared.kv.room import allocating, check_room


def test_more_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=100))
    check_room({})
    check_room({"kv_bytes": 60, "slab_bytes": 40})
    with pytest.raises(
        ConfigError, match=r"kv_bytes \(60 bytes\) and slab_bytes \(41 bytes\)"
    ) as e:
        check_room({"kv_bytes": 60, "slab_bytes": 41})
    assert "100 bytes of memory in all; lower kv_bytes or slab_bytes" in e.value.message
    assert e.value.param == "kv_bytes"


@pytest.mark.parametrize(
    "allocate",
    [
        HostMemory,
        lambda nbytes: torch.empty(nbytes, dtype=torch.uint8),
        lambda nbytes: bytearray(b"\x01") * nbytes,
    ],
)
def test_a_refused_allocation_is_a_wrong_setting(allocate) -> None:
    nbytes = 1 << 60
    with (
        pytest.raises(
            ConfigError, match=rf"cpu did not give the {nbytes} bytes of slab_bytes"
        ) as e,
        allocating("slab_bytes", nbytes=nbytes, place="cpu"),
    ):
        allocate(nbytes)
    assert e.value.param == "slab_bytes"
    assert e.value.__cause__ is not None

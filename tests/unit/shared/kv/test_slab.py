"""The slab's buffer and its refusals."""

import numpy as np
import pytest

from shared.errors import ConfigError, InternalError, InvalidRequestError, StaleWriteError
from shared.kv.slab import Slab


def test_memory_is_a_writable_buffer_that_nobody_touched() -> None:
    slab = Slab(2**34)  # 16 GiB: only possible when pages are not touched
    array = np.frombuffer(slab.memory.fetch(0, slab.memory.nbytes), dtype=np.uint8)
    assert array.flags.writeable
    assert array[-1] == 0


def test_views_share_the_buffer() -> None:
    slab = Slab(1_000)
    slab.reserve(10)
    lease = slab.reserve(8)
    assert lease is not None
    slab.write(slot=lease.slot, generation=lease.generation, offset=4, data=b"abcd")
    array = np.frombuffer(slab.memory.fetch(0, slab.memory.nbytes), dtype=np.uint8)
    assert bytes(array[lease.offset + 4 : lease.offset + 8]) == b"abcd"
    slab.view(lease.slot, lease.generation, 0, 1)[0] = 7
    assert array[lease.offset] == 7


def test_other_element_types_are_written_as_bytes() -> None:
    slab = Slab(64)
    lease = slab.reserve(16)
    assert lease is not None
    values = np.arange(4, dtype=np.float32)
    slab.write(slot=lease.slot, generation=lease.generation, offset=0, data=values.data)
    landed = np.frombuffer(slab.view(lease.slot, lease.generation, 0, 16), dtype=np.float32)
    assert np.array_equal(landed, values)


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (8, 1), (0, 9)])
def test_ranges_outside_the_lease_are_refused(offset: int, length: int) -> None:
    slab = Slab(64)
    lease = slab.reserve(8)
    assert lease is not None
    with pytest.raises(StaleWriteError):
        slab.view(lease.slot, lease.generation, offset, length)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_sizes_that_are_none(nbytes: int) -> None:
    with pytest.raises(ConfigError):
        Slab(nbytes)
    with pytest.raises(InvalidRequestError):
        Slab(64).reserve(nbytes)


def test_quarantine_twice_and_then_release() -> None:
    slab = Slab(64)
    lease = slab.reserve(64)
    assert lease is not None
    slab.quarantine(lease.slot, lease.generation)
    slab.quarantine(lease.slot, lease.generation)
    assert slab.reserve(1) is None
    slab.release(lease.slot, lease.generation)
    assert slab.reserve(64) is not None


def test_damaged_book_keeping_is_noticed() -> None:
    slab = Slab(256)
    slab._gaps = [(0, 64)]
    with pytest.raises(InternalError):
        slab.check_integrity()
    slab._gaps = [(0, 64), (64, 192)]
    with pytest.raises(InternalError):
        slab.check_integrity()
    slab._gaps = [(64, 192)]
    with pytest.raises(InternalError):
        slab.check_integrity()

"""Weighted sums: the kernel against its slow twin and a sum in plain numbers; what they notice."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from shared.kv_memory.kernels.sum_segments import launch_sums
from shared.kv_memory.sums import SegmentSums
from shared.kv_memory.weighted_sum import FIRST_FACTOR, SECOND_FACTOR, slow_sums, unsigned
from shared.types.kv_manifest import Segment, SegmentKind
from tests.support.kernel_rows import DEVICE

LENGTHS = (4, 8, 64, 2048 * 4, 2048 * 4 + 4, 33_000 * 4, 7 * 4)


def segments(lengths: tuple[int, ...]) -> tuple[Segment, ...]:
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + -(-length // 64) * 64)
    return tuple(
        Segment(kind=SegmentKind.KV, index=i, offset=a, length=length)
        for i, (length, (a, _)) in enumerate(zip(lengths, pairwise(offsets), strict=True))
    )


def slab(found: tuple[Segment, ...], *, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    size = max(s.offset + s.length for s in found)
    size = -(-size // 64) * 64
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def plain(data: bytes) -> int:
    """The definition, in numbers without bounds."""
    total, modulus = 0, 1 << 64
    for i in range(len(data) // 4):
        word = int.from_bytes(data[4 * i : 4 * i + 4], "little")
        mixed = (i + 1) * FIRST_FACTOR % modulus
        mixed ^= mixed >> 29
        total += word * ((mixed * SECOND_FACTOR % modulus) | 1)
    return total % modulus


def test_the_kernel_the_twin_and_the_definition_agree() -> None:
    found = segments(LENGTHS)
    data = slab(found)
    wanted = [plain(bytes(data[s.offset : s.offset + s.length].numpy())) for s in found]
    assert [unsigned(x) for x in slow_sums(data, found).tolist()] == wanted
    assert [unsigned(x) for x in launch_sums(data.to(DEVICE), found).tolist()] == wanted


@pytest.mark.parametrize("kernel", [False, True], ids=["torch", "triton"])
def test_sums_that_come_in_parts_are_those_of_the_whole(kernel: bool) -> None:
    found = segments(LENGTHS)
    data = slab(found)
    if kernel:
        data = data.to(DEVICE)
    sums = SegmentSums(data.device)
    sums.name = "triton" if kernel else "torch"
    running = sums.begin(data, found)
    for first, end in ((3, 7), (0, 1), (1, 3)):
        running.add(first, end)
    assert torch.equal(running.total(), sums.enqueue(data, found).to(data.device))
    assert torch.equal(running.total().cpu(), slow_sums(slab(found), found))


def test_the_sum_is_what_peers_of_other_versions_compute() -> None:
    """A number of the protocol: other constants would refuse every handoff of a mixed pair."""
    found = segments((64,))
    data = torch.arange(64, dtype=torch.uint8)
    [total] = slow_sums(data, found).tolist()
    assert unsigned(total) == 0x0BCA68C172170400


def test_no_segments_have_no_sums() -> None:
    data = torch.zeros(64, dtype=torch.uint8)
    assert slow_sums(data, ()).tolist() == []
    assert launch_sums(data.to(DEVICE), ()).tolist() == []


@pytest.mark.parametrize("length", [4, 12, 4096, 40_000])
def test_every_flipped_bit_of_some_bytes_shows(length: int) -> None:
    found = segments((length,))
    data = slab(found)
    before = slow_sums(data, found)
    for byte in {0, 1, length // 2, length - 1}:
        for bit in range(8):
            data[byte] ^= 1 << bit
            assert slow_sums(data, found) != before
            data[byte] ^= 1 << bit
    assert slow_sums(data, found) == before


@pytest.mark.parametrize("distance", [1, 2, 3, 4, 8, 64, 2048, 4096])
def test_bytes_that_moved_show(distance: int) -> None:
    found = segments((40_000,))
    data = slab(found)
    before = slow_sums(data, found)
    swapped = data.clone()
    swapped[0], swapped[distance] = data[distance].clone(), data[0].clone()
    assert slow_sums(swapped, found) != before
    assert slow_sums(data.roll(distance), found) != before
    halves = data.clone()
    halves[:distance], halves[distance : 2 * distance] = (
        data[distance : 2 * distance],
        data[:distance].clone(),
    )
    assert slow_sums(halves, found) != before


@pytest.mark.parametrize("lost", [1, 3, 64, 20_000])
def test_bytes_that_did_not_arrive_show(lost: int) -> None:
    found = segments((40_000,))
    data = slab(found)
    cut = data.clone()
    cut[40_000 - lost : 40_000] = 0
    assert slow_sums(cut, found) != slow_sums(data, found)

"""Memory of the host: touched lazily, of huge pages where the kernel has them."""

from pathlib import Path

import pytest

from shared.kv.memory import HostMemory

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not _SETTING.exists(), reason="a kernel without transparent huge pages")
def test_the_kernel_is_asked_for_huge_pages() -> None:
    memory = HostMemory(4 << 20)
    region = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        start, dash, end = line.partition(" ")[0].partition("-")
        if dash and ":" not in start:
            region = "ours" if int(start, 16) <= memory.address < int(end, 16) else ""
        if region and line.startswith("VmFlags:"):
            assert "hg" in line.split()
            return
    pytest.fail("the memory is in no mapping")


def test_memory_without_huge_pages_serves_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_memory: HostMemory, _advice: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(HostMemory, "madvise", refuse, raising=False)
    memory = HostMemory(4096)
    memory.store(10, memoryview(b"abc"))
    assert bytes(memory.fetch(9, 5)) == b"\0abc\0"
    assert memory.nbytes == 4096

"""What NVML tells becomes links by UUID; what it does not tell has a reason."""

# ruff: noqa: N802  names of the library

import sys
from types import SimpleNamespace

import pytest

from shared.transport.nvml import read_gpu_links


class NvmlError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """Four GPUs; NVLink joins 0-1, PCIe lets 0-2 through, 0-3 is closed."""

    NVMLError = NvmlError
    NVML_P2P_CAPS_INDEX_READ = (0,)  # as in the package
    inits = 0
    gpus = 4
    fails = ""

    def nvmlInit(self) -> None:
        if self.fails == "init":
            raise NvmlError("Driver Not Loaded\nand more")
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.inits -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.fails == "count":
            raise NvmlError("Unknown Error")
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return f"GPU-{handle}" if handle else b"GPU-0"  # old libraries answer bytes

    def nvmlDeviceGetP2PStatus(self, own: int, other: int, capability: int) -> int:
        assert own != other
        assert type(capability) is int  # ctypes takes nothing else
        pair = {own, other}
        if pair == {0, 1}:
            return 0
        if pair == {0, 2}:
            return 0 if capability != 2 else 1
        if pair == {0, 3}:
            raise NvmlError("Not Supported")
        return 1


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_links_are_told_by_uuid(nvml: FakeNvml) -> None:
    links = read_gpu_links("0")
    assert links.gpus == ("0", "1", "2", "3")
    assert links.nvlink_peers == ("1",)
    assert links.p2p_peers == ("1", "2")
    assert links.note == ""
    assert nvml.inits == 0


def test_a_process_without_a_gpu_of_its_own_sees_the_machines(nvml: FakeNvml) -> None:
    for gpu in ("", "unheard-of"):
        links = read_gpu_links(gpu)
        assert (len(links.gpus), links.nvlink_peers, links.p2p_peers) == (4, (), ())
    nvml.gpus = 0
    assert read_gpu_links("").note == "the NVIDIA driver shows no GPU"


@pytest.mark.parametrize(
    ("fails", "note"),
    [
        ("init", "no NVIDIA driver answers here (Driver Not Loaded)"),
        ("count", "the NVIDIA driver does not tell of its GPUs (Unknown Error)"),
    ],
)
def test_what_is_not_told_has_a_reason(nvml: FakeNvml, fails: str, note: str) -> None:
    nvml.fails = fails
    links = read_gpu_links("0")
    assert (links.gpus, links.note) == ((), note)
    assert nvml.inits == 0


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    links = read_gpu_links("0")
    assert links.gpus == ()
    assert links.note.startswith("package nvidia-ml-py cannot be imported")

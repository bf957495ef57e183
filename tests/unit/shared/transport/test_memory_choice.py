"""Which memory a worker takes, and the reason it gives."""

import mmap

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.errors import ConfigError
from shared.kv.memory import HostMemory
from shared.kv_memory.tensor_memory import TensorMemory
from shared.telemetry.metrics import HealthMetrics
from shared.transport import memory_choice
from shared.transport.memory_choice import choose_memory, note_memory
from shared.types.memory_kind import MemoryKind, check_memory
from tests.support.transfer_parts import needs_nixl

BOTH = ("nixl", "grpc")


class OfHost(TensorMemory):
    """What stands for a GPU's memory on a machine without one."""

    def __init__(self, nbytes: int, *, device: str) -> None:
        super().__init__(nbytes, device="cpu")
        self.asked = device


class Unmapped(OfHost):
    """Memory that the library cannot register: nothing is mapped there."""

    def __init__(self, nbytes: int, *, device: str) -> None:
        super().__init__(nbytes, device=device)
        self.segment = "VRAM"
        self.address = 7 * mmap.PAGESIZE


@needs_nixl
@pytest.mark.parametrize(
    ("setting", "device", "transports", "kind", "reason"),
    [
        ("host", "cuda:0", BOTH, MemoryKind.HOST, "kv_memory is host"),
        ("auto", "cpu", BOTH, MemoryKind.HOST, "computes in host memory"),
        ("auto", "cuda:0", ("grpc",), MemoryKind.HOST, "transports leave out nixl"),
        ("auto", "cuda:1", BOTH, MemoryKind.DEVICE, "cuda:1 and nixl"),
        ("device", "cpu", BOTH, MemoryKind.DEVICE, "kv_memory is device"),
    ],
)
def test_the_setting_and_what_is_there_decide(
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    device: str,
    transports: tuple[str, ...],
    kind: MemoryKind,
    reason: str,
) -> None:
    if device.startswith("cuda"):
        monkeypatch.setattr(memory_choice, "TensorMemory", OfHost)
    choice = choose_memory(setting, device=device, transports=transports)
    assert choice.kind is kind
    assert reason in choice.reason
    assert choice.facts == {"kind": kind.value, "reason": choice.reason}
    if device == "cpu":
        expected = TensorMemory if kind is MemoryKind.DEVICE else HostMemory
        assert isinstance(choice.allocator(64), expected)


@needs_nixl
@pytest.mark.parametrize("setting", ["auto", "device"])
def test_an_allocator_without_shareable_memory_is_named(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if setting == "device":
        with pytest.raises(ConfigError, match=r"cannot be had.*expandable segments"):
            choose_memory(setting, device="cuda:0", transports=BOTH)
        return
    choice = choose_memory(setting, device="cuda:0", transports=BOTH)
    assert choice.kind is MemoryKind.HOST
    assert "expandable segments" in choice.reason


def test_a_cpu_is_the_first_cause_that_is_told() -> None:
    with pytest.raises(ConfigError, match=r"device cpu computes in host memory.*leave out nixl"):
        choose_memory("device", device="cpu", transports=("grpc",))


def test_a_library_that_is_absent_leaves_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise ConfigError("package nixl-cu13 is not installed", code="not_installed")

    monkeypatch.setattr(memory_choice, "load_nixl", absent)
    choice = choose_memory("auto", device="cuda:0", transports=BOTH)
    assert choice.kind is MemoryKind.HOST
    assert "nixl does not work here (package nixl-cu13 is not installed)" in choice.reason
    with pytest.raises(ConfigError, match="cannot be had"):
        choose_memory("device", device="cuda:0", transports=BOTH)


def test_other_words_are_refused() -> None:
    for word in ("auto", "host", "device"):
        check_memory("decode", word)
    with pytest.raises(ConfigError, match=r"decode setting kv_memory cannot be 'gpu'.*auto, host"):
        check_memory("decode", "gpu")


@needs_nixl
async def test_memory_that_the_agent_cannot_register_leaves_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asked within a running loop, as a decode worker's start does."""
    monkeypatch.setattr(memory_choice, "TensorMemory", Unmapped)
    choice = choose_memory("auto", device="cuda:0", transports=BOTH)
    assert choice.kind is MemoryKind.HOST
    assert "nixl cannot register memory of cuda:0" in choice.reason
    assert choice.facts["fallback"] == "not_registered"
    with pytest.raises(ConfigError, match="cannot be had: nixl cannot register memory of cuda:0"):
        choose_memory("device", device="cuda:0", transports=BOTH)
    registry = CollectorRegistry()
    with capture_logs() as lines:
        note_memory(choice, HealthMetrics(registry))
    labels = {"reason": "not_registered"}
    assert registry.get_sample_value("tandem_kv_memory_fallback", labels) == 1
    assert [(line["log_level"], line["reason"]) for line in lines] == [("warning", choice.reason)]


@needs_nixl
def test_a_choice_of_the_operator_is_no_fallback() -> None:
    for setting, transports in (("host", BOTH), ("auto", ("grpc",))):
        choice = choose_memory(setting, device="cuda:0", transports=transports)
        with capture_logs() as lines:
            note_memory(choice, HealthMetrics(CollectorRegistry()))
        assert "fallback" not in choice.facts
        assert not lines

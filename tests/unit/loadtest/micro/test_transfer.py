import json

import pytest

from loadtest.micro import transfer
from shared.errors import ConfigError, InternalError
from tests.support.transfer_parts import needs_nixl


def quiet(_line: str) -> None:
    """Hears nothing."""


def test_it_compares_every_byte_before_it_times_every_arm() -> None:
    lines: list[str] = []
    report = transfer.bench_transfer(
        sizes_mib=[1, 2], transports=["grpc"], repeats=2, progress=lines.append
    )
    assert [size["mib"] for size in report["sizes"]] == [1, 2]
    for size in report["sizes"]:
        assert set(size["gbps"]) == {"grpc", transfer.COPY}
        assert set(size["share_of_copy"]) == {"grpc"}
        for spread in size["gbps"].values():
            assert 0 < spread["min"] <= spread["median"] <= spread["max"]
    assert lines[0] == "1 MiB over grpc: every byte is the same"
    assert lines[1].startswith("1 MiB, repeat 1 of 2")
    assert "--transports grpc" in report["command"]
    assert report["hardware"]["cores"] >= 1
    assert json.loads(json.dumps(report)) == report


def test_no_speed_is_claimed_for_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = transfer._Peer.ask

    def damaged(peer: transfer._Peer, **command: object) -> dict[str, object]:
        answer = ask(peer, **command)
        return answer | {"sha256": "of other bytes"} if command["do"] == "digest" else answer

    monkeypatch.setattr(transfer._Peer, "ask", damaged)
    with pytest.raises(InternalError, match="arrived as others"):
        transfer.bench_transfer(sizes_mib=[1], transports=["grpc"], repeats=1, progress=quiet)


@pytest.mark.parametrize(
    ("sizes", "transports", "repeats", "why"),
    [
        ([0], [], 1, "at least 1"),
        ([1], [], 0, "at least 1"),
        ([1], ["pigeon"], 1, "unknown transport 'pigeon'"),
        ([1], ["loopback"], 1, "none of loopback can be measured here: .* takes .*grpc"),
    ],
)
def test_settings_that_fit_nothing_are_refused(
    sizes: list[int], transports: list[str], repeats: int, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        transfer.bench_transfer(
            sizes_mib=sizes, transports=transports, repeats=repeats, progress=quiet
        )


@needs_nixl
def test_memory_of_a_device_is_sent_where_it_is_and_the_push_is_told_apart() -> None:
    """The device is the CPU here, and the report says so."""
    report = transfer.bench_transfer(
        sizes_mib=[1], transports=[], repeats=2, memory="device", progress=quiet
    )
    [size] = report["sizes"]
    assert set(size["gbps"]) == {"nixl", "nixl push", transfer.COPY}
    assert set(size["share_of_copy"]) == {"nixl", "nixl push"}
    assert size["gbps"]["nixl"]["max"] < size["gbps"]["nixl push"]["max"]
    memory = report["memory"]
    assert (memory["kind"], memory["sender"], memory["receiver"]) == ("device", "cpu", "cpu")
    assert set(memory["topology"]) == {"sender", "receiver"}
    assert report["rejected"] == {"grpc": "not asked for"}
    assert report["command"].endswith("--memory device")
    json.dumps(report)


def test_device_memory_goes_over_grpc_when_that_is_asked_for() -> None:
    report = transfer.bench_transfer(
        sizes_mib=[1], transports=["grpc"], repeats=1, memory="device", progress=quiet
    )
    assert set(report["sizes"][0]["gbps"]) == {"grpc", transfer.COPY}


def test_another_kind_of_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="--memory cannot be 'disk'"):
        transfer.bench_transfer(
            sizes_mib=[1], transports=[], repeats=1, memory="disk", progress=quiet
        )

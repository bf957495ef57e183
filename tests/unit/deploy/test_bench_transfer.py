import json

import pytest
import torch

from deploy import bench_transfer
from deploy.bench_transfer import run_transfer
from deploy.launch import ALLOCATOR_VARIABLES
from loadtest.micro import transfer
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.errors import ConfigError, TransportError


def test_one_process_with_the_launchers_variables_makes_json_and_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    run_transfer(sizes=[1], transports=["grpc"], repeats=1, as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert report["benchmark"] == "transfer"
    assert report["allocator"] == dict(ALLOCATOR_VARIABLES)
    bench_transfer.print_result(report | {"rejected": {"nixl": "its package is absent"}})
    text = capsys.readouterr().out
    assert "bare copy" in text
    assert "nixl was not measured: its package is absent" in text
    assert "tandem bench transfer --sizes 1 --repeats 1 --transports grpc" in text


@pytest.mark.parametrize(("sizes", "transports"), [([1], ["pigeon"]), ([0], ["grpc"])])
def test_settings_that_fit_nothing_are_refused(sizes: list[int], transports: list[str]) -> None:
    with pytest.raises(ConfigError):
        run_transfer(sizes=sizes, transports=transports, repeats=1, as_json=True)


@pytest.mark.parametrize(
    ("memory", "code", "why"),
    [
        ("gpu", ExitCode.CONFIG, "--memory cannot be 'gpu': choose host or device"),
        ("device", ExitCode.NO_DEVICE, "finds no GPU here"),
    ],
)
def test_memory_that_is_not_here_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, memory: str, code: ExitCode, why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(bench_transfer, "_MODULE", "loadtest.micro.no_such_benchmark")
    with pytest.raises(ConfigError, match=why) as raised:
        run_transfer(sizes=[1], transports=[], repeats=1, as_json=True, memory=memory)
    assert exit_code_for(raised.value) is code
    with pytest.raises(ConfigError, match=why):
        transfer.main(["--memory", memory])


def test_a_benchmark_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_transfer, "_MODULE", "loadtest.micro.no_such_benchmark")
    with pytest.raises(TransportError, match="No module named"):
        run_transfer(sizes=[1], transports=[], repeats=1, as_json=True)

"""`tandem bench prefill|decode|kernels|plot`: which flags go where, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from deploy import bench, bench_cuda
from deploy.bench_cuda import as_flags, refuse, run_kernels
from deploy.cli_bench import bench_app
from loadtest.micro import decode_step, gpu_facts, kernels, prefill_pass
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.errors import ConfigError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Arguments of the benchmarks of kernels, by module; a GPU is there, it seems."""
    found: dict[str, list[str]] = {}

    def instead(name: str) -> Any:
        short = name.rpartition(".")[2]
        return SimpleNamespace(main=lambda arguments: found.update({short: list(arguments)}))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench_cuda, "import_module", instead)
    return found


def tandem(*arguments: str) -> Any:
    return CliRunner().invoke(bench_app, list(arguments), catch_exceptions=True)


def refusal(*arguments: str) -> str:
    error = tandem(*arguments).exception
    assert isinstance(error, ConfigError)
    return error.message


def test_a_device_picks_the_benchmark_and_takes_what_was_asked_for(
    started: dict[str, list[str]],
) -> None:
    asked = ("--shape", "smollm2-135m", "--tokens", "512,1024", "--keep", "0.1", "--repeats", "3")
    done = tandem("prefill", "--device", "cuda", *asked, "--peers", "", "--cases", "2", "--json")
    assert done.exit_code == 0, done.output
    assert started["prefill_pass"] == [
        "--device",
        "cuda",
        "--shape=smollm2-135m",
        "--tokens=512,1024",
        "--keep=0.1",
        "--repeats=3",
        "--peer=",
        "--cases=2",
        "--json",
    ]
    asked = ("--shape", "r1-qwen-7b", "--context", "4096,8192", "--batch", "8", "--repeats", "2")
    assert tandem("decode", "--device", "cuda", *asked, "--peers", "").exit_code == 0
    assert started["decode_step"] == [
        "--device",
        "cuda",
        "--shape=r1-qwen-7b",
        "--context=4096,8192",
        "--batch=8",
        "--repeats=2",
        "--peer=",
    ]
    assert tandem("kernels", "--only", "18432", "--sweep").exit_code == 0
    assert started["kernels"] == ["--device", "cuda", "--only=18432", "--sweep"]
    assert tandem("kernels", "--device", "cpu").exit_code == 0
    assert started["kernels"] == ["--device", "cpu"]


def test_further_flags_are_handed_on(started: dict[str, list[str]]) -> None:
    assert tandem("prefill", "--device", "cuda", "--chunk-tokens", "4096").exit_code == 0
    assert started["prefill_pass"] == ["--device", "cuda", "--chunk-tokens", "4096"]


@pytest.mark.parametrize("module", [prefill_pass, decode_step, kernels])
def test_flags_are_those_of_the_benchmarks(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    flags = {
        prefill_pass: ["--shape", "--tokens", "--keep", "--repeats", "--peer", "--cases"],
        decode_step: ["--shape", "--context", "--batch", "--only", "--repeats", "--peer"],
        kernels: ["--only", "--sweep"],
    }
    assert all(flag in text for flag in ["--device", "--json", *flags[module]])


def test_a_cpu_runs_what_it_always_did(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: dict[str, dict[str, Any]] = {}

    def instead(name: str) -> Any:
        return lambda **given: ran.update({name: given})

    monkeypatch.setattr(bench, "run_prefill", instead("prefill"))
    monkeypatch.setattr(bench, "run_decode", instead("decode"))
    assert tandem("prefill").exit_code == 0
    assert tandem("decode", "--context", "512", "--policy", "quest").exit_code == 0
    assert ran["prefill"] == {
        "model": "smollm2",
        "tokens": 4096,
        "keep": [0.2, 1.0],
        "lp": None,
        "repeats": 5,
        "as_json": False,
    }
    assert (ran["decode"]["context"], ran["decode"]["policy"].value) == (512, "quest")
    assert (ran["decode"]["new_tokens"], ran["decode"]["page_budget"]) == (64, 16)


def test_nothing_is_left_out_silently() -> None:
    refuse("cpu", {"--shape": None})
    for arguments, flag in (
        (("prefill", "--device", "cuda", "--model", "smollm2"), "--model"),
        (("prefill", "--device", "cuda", "--lp", "3"), "--lp"),
        (("prefill", "--shape", "llama-3.1-8b"), "--shape"),
        (("prefill", "--cases", "2"), "--cases"),
        (("prefill", "--what"), "--what"),
        (("decode", "--device", "cuda", "--new-tokens", "3"), "--new-tokens"),
        (("decode", "--device", "cuda", "--policy", "quest"), "--policy"),
        (("decode", "--batch", "3"), "--batch"),
        (("decode", "--peers", "vllm"), "--peers"),
        (("decode", "--what", "3"), "--what"),
    ):
        assert f"{flag}" in refusal(*arguments)
        assert "cannot be used with --device" in refusal(*arguments)


def test_bad_values_say_what_to_write() -> None:
    for arguments in (
        ("prefill", "--tokens", "10k"),
        ("prefill", "--tokens", "0"),
        ("prefill", "--repeats", "1,2"),
        ("decode", "--context", "4096,8192"),
    ):
        assert "write a whole number of at least 1" in refusal(*arguments)
    cuda = ("--device", "cuda")
    assert "write whole numbers above 0" in refusal("prefill", *cuda, "--tokens", "10k")
    assert "write numbers above 0" in refusal("prefill", *cuda, "--keep", "0.1;0.2")
    assert "write whole numbers above 0" in refusal("decode", *cuda, "--context", "0")
    assert tandem("prefill", "--device", "tpu").exit_code == 2
    with pytest.raises(ConfigError, match="--keep cannot be ''"):
        as_flags({"--keep": ""}, lists={"--keep": float})


def test_a_machine_without_triton_or_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="sees no CUDA device") as caught:
        run_kernels("kernels", [], as_json=False)
    assert exit_code_for(caught.value) is ExitCode.NO_DEVICE
    with pytest.raises(ConfigError, match="sees no CUDA device") as caught:
        gpu_facts.require_kernels(torch.device("cuda"))
    assert exit_code_for(caught.value) is ExitCode.NO_DEVICE
    monkeypatch.setattr(bench_cuda, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"extra gpu.*no CUDA device") as caught:
        run_kernels("kernels", [], as_json=False)
    assert exit_code_for(caught.value) is ExitCode.NO_DEVICE
    with pytest.raises(ConfigError, match=r"extra gpu$") as caught:
        run_kernels("kernels", [], device="cpu", as_json=False)
    assert exit_code_for(caught.value) is ExitCode.CONFIG


def test_a_result_says_by_which_program_it_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr("sys.argv", ["/somewhere/tandem", "bench", "kernels", "--only", "a b"])
    found = gpu_facts.gpu_facts("loadtest.micro.kernels", cpu)
    assert found["command"] == "tandem bench kernels --only 'a b'"
    monkeypatch.setattr("sys.argv", ["/somewhere/kernels.py", "--json"])
    found = gpu_facts.gpu_facts("loadtest.micro.kernels", cpu)
    assert found["command"] == "python -m loadtest.micro.kernels --json"


def test_pictures_of_results(tmp_path: Path) -> None:
    result = tmp_path / "prefill.json"
    result.write_text(
        '{"benchmark": "prefill_pass", "shape": "a", "tokens": {"9": {"arms": {"full": '
        '{"seconds": {"median": 1.0, "min": 1.0, "max": 1.0}}}}}}'
    )
    done = tandem("plot", str(result), "--out", str(tmp_path))
    assert done.output.split() == [str(tmp_path / "ttft-by-length.png")]
    assert "cannot be read" in refusal("plot", str(tmp_path / "other.json"))

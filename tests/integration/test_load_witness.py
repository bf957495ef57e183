"""The witness's command before a gateway: what each tool is given, the verdict, the files."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.bench_serve import run_witness
from loadtest.witness.guidellm import LEAD_S, TAIL_S
from shared.types.options import Mode
from tests.support import guidellm_double
from tests.support.gateway_rig import running_rig
from tests.support.load_runs import requests_in, started
from tests.support.processes import run_tandem
from tests.support.tiny_tokenizer import write_tokenizer_folder

COMMAND = ("-m", "loadtest.witness")
LOAD = ("--rate", "8", "--seconds", "1", "--seed", "4", "--repeats", "3", "--max-lag", "1000",
        "--slo", "chat:ttft=60,tpot=60")  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer_folder(tmp_path_factory.mktemp("model"))


async def test_both_tools_send_the_same_requests_and_a_difference_is_found(
    model: Path, tmp_path: Path
) -> None:
    out, program = tmp_path / "out", guidellm_double.install(tmp_path, delay_s=60.0)
    prompts: set[tuple[int, ...]] = set()
    async with running_rig(model) as rig:
        answer = rig.simulation.answer

        def noted(prompt: Sequence[int]) -> list[int]:
            prompts.add(tuple(prompt))
            return answer(prompt)

        rig.simulation.answer = noted
        code, said = await started(
            *COMMAND, "--host", rig.url, "--guidellm", str(program), *LOAD,
            "--mode", "both", "--out", str(out),
        )  # fmt: skip
        asked = rig.methods(rig.prefills[0]).count("Prefill")
        modes = {options.mode for options in rig.simulation.options}
    found = json.loads((out / "witness.json").read_text())
    assert code == 1, said
    assert "differs: results in" in said
    assert found["verdict"] == "differs"
    assert found["ttft_p50"]["high"] < 0.9
    runs = ["ours, repeat 1", "theirs, repeat 1", "theirs, repeat 2", "ours, repeat 2"]
    assert [said.index(run) for run in runs] == sorted(said.index(run) for run in runs)
    assert found["tool"] == {"name": "guidellm", "version": guidellm_double.VERSION}
    assert [row["seed"] for row in found["repeats"]] == [4, 5, 6]
    assert [row["first"] for row in found["repeats"]] == ["ours", "theirs", "ours"]
    for row in found["repeats"]:
        counts = ("requests", "failed", "prompt_tokens", "answer_tokens")
        assert [row["ours"][key] for key in counts] == [row["theirs"][key] for key in counts]
        assert row["ours"]["failed"] == 0
    assert found["ttft_p50"]["low"] <= found["ttft_p50"]["ratio"] <= found["ttft_p50"]["high"]
    assert found["connect_s"] > 0
    warmed_up = len(requests_in(out / "runs/warm-up"))
    assert asked == 2 * len(prompts) - warmed_up  # every prompt came once from each tool
    assert modes == {Mode.BOTH}
    rows = [json.loads(line) for line in
            (out / "runs/theirs-1/requests.jsonl").read_text().splitlines()]  # fmt: skip
    due = sorted(LEAD_S + row["due_s"] for row in requests_in(out / "runs/ours-1"))
    assert [row["relative_timestamp"] for row in rows] == [*due, due[-1] + TAIL_S]


async def test_a_witness_that_fails_is_quoted(model: Path, tmp_path: Path) -> None:
    out, program = tmp_path / "out", guidellm_double.install(tmp_path, fails=True)
    async with running_rig(model) as rig:
        code, said = await started(
            *COMMAND, "--host", rig.url, "--guidellm", str(program), *LOAD, "--out", str(out)
        )
    assert code == 1
    assert "the double was told to fail" in said
    assert not (out / "witness.json").exists()


def test_without_guidellm_it_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none")
    given: dict[str, Any] = {"host": "http://127.0.0.1:1", "out": tmp_path, "as_json": True}
    assert run_witness(**given, flags=["--guidellm", missing]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert "pip install guidellm==" in said.err
    assert missing in said.err


def test_the_command_has_its_flags() -> None:
    said = run_tandem("bench", "witness", "--help")
    assert said.returncode == 0
    assert all(flag in said.stdout for flag in ("--guidellm", "--within", "--repeats"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("guidellm") is None,
    reason="guidellm is not installed (a virtual environment of its own, on PATH)",
)
async def test_guidellm_itself_counts_the_same_work(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with running_rig(model) as rig:
        code, said = await started(
            *COMMAND, "--host", rig.url, *LOAD, "--within", "0.99", "--out", str(out)
        )
    assert code in {0, 10}, said
    found = json.loads((out / "witness.json").read_text())
    assert all(row["theirs"]["failed"] == 0 for row in found["repeats"])

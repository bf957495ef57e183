"""Arms before a gateway: what is offered to each, in which order, and the files they leave."""

import argparse
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from deploy.bench_serve import run_arms
from loadtest.load import arms as arms_module
from loadtest.load.__main__ import main
from loadtest.load.flags import add_flags, settings_of
from loadtest.load.outcome import Outcome
from loadtest.load.record import Record
from loadtest.load.summary import summary_of
from shared.types.options import Mode
from tests.support.gateway_rig import running_rig
from tests.support.load_runs import requests_in, started
from tests.support.tiny_tokenizer import write_tokenizer_folder

FLAGS = ("--host", "http://h", "--rate", "2", "--seconds", "2")


async def test_every_arm_gets_the_same_requests(tmp_path: Path) -> None:
    out = tmp_path / "out"
    async with running_rig(write_tokenizer_folder(tmp_path / "model")) as rig:
        code, said = await started(
            "-m", "loadtest.load", "arms", "--host", rig.url, "--arms", "full,both",
            "--repeats", "1", "--rate", "6", "--seconds", "1", "--seed", "4", "--out", str(out),
            "--slo", "chat:ttft=60,tpot=60", "--max-lag", "1000",
        )  # fmt: skip
        modes = [options.mode for options in rig.simulation.options]
    assert code == 0, said
    assert "run 2 of 2: pair + both" in said
    assert set(modes) == {Mode.FULL, Mode.BOTH}
    assert sum(before != after for before, after in pairwise(modes)) == 1  # one after the other
    plans = [
        sorted((row["index"], row["due_s"], row["prompt_tokens"], row["answer_tokens"])
               for row in requests_in(out / "runs" / name))
        for name in ("full-1", "both-1")
    ]  # fmt: skip
    assert plans[0] == plans[1] != []
    found = json.loads((out / "arms.json").read_text())
    assert found["order"] == ["full-1", "both-1"]
    assert found["arms"]["both"]["overrides"] == {"mode": "both"}
    assert found["arms"]["full"]["classes"]["chat"]["ttft"]["count"] == len(plans[0])
    assert found["comparison"]["metrics"]["goodput_per_s"]["ratios"]["both"]["low"] is None
    assert found["verdict"] == "pass"
    assert found["one_server"]
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http://" not in page.replace(rig.url, "")  # nothing is fetched from elsewhere


def summary_of_run(flags: Sequence[str], *, verdict: str, ttft_s: float) -> dict[str, Any]:
    """A run's summary as Locust's process would leave it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    add_flags(parser)
    settings = settings_of(vars(parser.parse_args(list(flags))))
    outcomes = [
        Outcome(index=n, kind="chat", stage=0, due_s=float(n), started_s=float(n),
                ended_s=n + 0.5, e2e_s=0.5, ttft_s=ttft_s, tpot_s=0.01, itl_max_s=0.01,
                itl_mean_s=0.01, prompt_tokens=100, answer_tokens=5, kept_tokens=40,
                attended=30, dense=60)
        for n in range(4)
    ]  # fmt: skip
    found = summary_of(
        Record(planned=4, outcomes=outcomes, complete=True),
        settings,
        server={"model": "m", "version": "1", "fingerprint": "f" * 64, "properties": {}},
        machine={"command": "c", "commit": "c" * 40, "uncommitted_changes": False,
                 "hardware": {"cpu": "one", "cores": 2}},
    )  # fmt: skip
    return found | {"verdict": verdict}


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs that leave a summary without any server; mode and seed of each, in order."""
    made: list[tuple[str, int]] = []

    def run(flags: Sequence[str]) -> int:
        given = dict(pairwise(flags))
        mode, seed = given["--mode"], int(given["--seed"])
        made.append((mode, seed))
        ttft_s = (0.2 if mode == "full" else 0.1) * (1 + 0.1 * seed)
        found = summary_of_run(
            flags, verdict="missed" if mode == "sparse" else "pass", ttft_s=ttft_s
        )
        out = Path(given["--out"])
        out.mkdir(parents=True)
        (out / "summary.json").write_text(json.dumps(found))
        return 0

    monkeypatch.setattr(arms_module, "run_locust", run)
    return made


def test_arms_alternate_and_are_compared_in_pairs(
    offered: list[tuple[str, int]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code = main(["arms", *FLAGS, "--out", str(out), "--seed", "7"])
    assert code == 1  # the worst verdict is sparse's
    forth = ["full", "prune", "sparse", "both"]
    expected = [*forth, *forth[::-1], *forth]
    assert offered == [(mode, 7 + place // 4) for place, mode in enumerate(expected)]
    found = json.loads((out / "arms.json").read_text())
    ratio = found["comparison"]["metrics"]["chat.ttft_p50_s"]["ratios"]["prune"]
    assert ratio["ratio"] == pytest.approx(0.5, rel=1e-3)
    assert (ratio["low"], ratio["high"]) == pytest.approx((0.5, 0.5), rel=1e-3)  # pairs agree
    chat = found["arms"]["prune"]["classes"]["chat"]
    assert chat["ttft"]["count"] == 12
    assert (chat["kept_share"], chat["attended_share"]) == (0.4, 0.5)
    page = (out / "report.html").read_text()
    assert "pair + CLAA / pair, full attention" in page
    assert "40.0%" in page
    assert main(["arms", *FLAGS, "--out", str(out)]) == 3  # there are results already


def test_the_command_prints_what_the_arms_came_to(
    offered: list[tuple[str, int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"host": "http://h", "out": tmp_path, "arms": "full,prune", "repeats": 1}
    flags = ["--rate", "2", "--seconds", "2", "--no-report"]
    assert run_arms(**given, flags=flags, as_json=True) == 0  # type: ignore[arg-type]
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "arms.json").read_text())
    assert [mode for mode, _ in offered] == ["full", "prune"]
    assert not (tmp_path / "report.html").exists()
    assert run_arms(**given, flags=flags, as_json=True) == 3  # type: ignore[arg-type]
    assert capsys.readouterr().out == ""  # old results are not printed as new ones


async def test_the_colocated_arm_asks_another_server_for_full_attention(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", write_tokenizer_folder(tmp_path / "model")
    async with (
        running_rig(folder) as pair,
        running_rig(folder, prefills=0, reads_tokens=1 << 20) as alone,
    ):
        code, said = await started(
            "-m", "loadtest.load", "arms", "--host", pair.url, "--colocated-host", alone.url,
            "--arms", "colocated,full", "--repeats", "1", "--rate", "6", "--seconds", "1",
            "--out", str(out), "--slo", "chat:ttft=60,tpot=60", "--max-lag", "1000",
        )  # fmt: skip
        assert {options.mode for options in alone.simulation.options} == {Mode.FULL}
        asked = [len(rig.simulation.options) for rig in (alone, pair)]
    assert code == 0, said
    assert asked[0] == asked[1] > 0
    assert "run 1 of 2: colocated, full attention" in said
    found = json.loads((out / "arms.json").read_text())
    assert [found["arms"][arm]["host"] for arm in ("colocated", "full")] == [alone.url, pair.url]
    assert found["one_server"], "both are of one release, model and settings"
    page = (out / "report.html").read_text()
    assert "pair, full attention / colocated, full attention" in page
    assert "Two servers, to be compared on as many GPUs or cores each" in page


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (("--arms", "colocated,full"), "go together"),
        (("--colocated-host", "http://c"), "go together"),
        (
            (
                "--arms",
                "colocated,full",
                "--colocated-host",
                "http://c",
                "--api",
                "grpc",
                "--grpc",
                "h:1",
                "--rate",
                "1",
                "--seconds",
                "2",
            ),
            "REST address only",
        ),
        (("--arms", "full"), "one arm"),
        (("--arms", "full,none"), "cannot be run"),
        (("--arms", "full,full"), "cannot be run"),
        (("--repeats", "0"), "repeats is 0"),
        (("--mode", "full"), "what the arms differ in"),
        (("--ramp", "fast"), "stages 'fast'"),
    ],
)
def test_arms_that_cannot_be_run_are_refused(
    wrong: tuple[str, str],
    text: str,
    offered: list[tuple[str, int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["arms", "--host", "http://h", "--out", str(tmp_path), *wrong]) == 3
    assert text in capsys.readouterr().err
    assert offered == []

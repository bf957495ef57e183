"""A decode worker is killed under load: goodput dips, the losses have reasons, and it recovers."""

import asyncio
import signal
import time
from pathlib import Path

import grpc
import pytest

from protos.tandem.v1 import control_pb2, control_pb2_grpc
from tests.support.compose_project import HAS_COMPOSE
from tests.support.compose_run import ComposeRun, pair_of_pairs
from tests.support.load_runs import RUN, requests_in, started, summary_in

pytestmark = [HAS_COMPOSE, pytest.mark.slow, pytest.mark.timeout(400)]

SECONDS = 40
QUIET_S = 12.0
"""Load before the worker dies."""


async def test_a_killed_decode_worker_shows_and_is_made_up_for(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pair_of_pairs(tmp_path / "compose", tiny_model_dir, say=print) as run:
        load = asyncio.create_task(
            started(
                *RUN, "--host", run.url, "--rate", "4", "--seconds", str(SECONDS), "--seed", "2",
                "--slo", "chat:ttft=20,tpot=5", "--max-lag", "1000", "--keep-going",
                "--drain", "60", "--out", str(out),
            )
        )  # fmt: skip
        killed = await asyncio.to_thread(kill_a_busy_worker, run)
        code, said = await load
        assert run.services[killed].process.wait() == -signal.SIGKILL
    assert code in {0, 1}, said  # a few lost requests may be within what may be missed
    found = summary_in(out)
    counts, disturbance = found["requests"], found["disturbance"]
    assert counts["offered"] == found["planned"] == len(requests_in(out))
    assert counts["offered"] == counts["finished"] + counts["failed"]
    assert 1 <= counts["failed"] < counts["offered"] / 2
    assert sum(found["failures"].values()) == counts["failed"]
    known = {"error_frame", "truncated", "http_500", "http_502", "http_503", "http_504"}
    assert set(found["failures"]) <= known
    assert disturbance["failures"] == found["failures"]
    assert disturbance["lowest_per_s"] < disturbance["before_per_s"]
    assert disturbance["recovered_at_s"] is not None
    later = [row for row in requests_in(out) if row["due_s"] > disturbance["last_failure_s"] + 3]
    assert later
    assert all(row["failure"] is None for row in later)
    page = (out / "report.html").read_text()
    assert f"recovered from second {disturbance['recovered_at_s']} on" in page


def kill_a_busy_worker(run: ComposeRun) -> str:
    """Kills a decode worker in the middle of an answer, some time after requests came."""
    workers = [name for name in run.services if name.startswith("decode")]
    assert len(workers) == 2
    wait_for_answers(run, workers)
    time.sleep(QUIET_S)
    name = wait_for_answers(run, workers)
    run.services[name].process.kill()
    return name


def wait_for_answers(run: ComposeRun, workers: list[str]) -> str:
    """The first decode worker found to be answering."""
    channels = {
        name: grpc.insecure_channel(f"127.0.0.1:{run.ports[name, 8201]}") for name in workers
    }
    stubs = {
        name: control_pb2_grpc.ControlServiceStub(channel) for name, channel in channels.items()
    }
    try:
        for _ in range(12_000):
            for name, stub in stubs.items():
                load = stub.GetLoad(control_pb2.GetLoadRequest(), timeout=30)
                if load.running_requests:
                    return name
            time.sleep(0.01)
    finally:
        for channel in channels.values():
            channel.close()
    raise AssertionError("no decode worker ever answered")

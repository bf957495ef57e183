"""guidellm as witness: the requests as its data set, their moments as its replay, its report read.

It replays rows at their `relative_timestamp`, sends the row's `messages` as they stand, and asks
for exactly `output_tokens_count` tokens with `ignore_eos`. With a file of rows and a server that
counts tokens it loads no tokenizer, so it needs no network. It is held to one process, as our
generator is: with more of them it would take the server's cores on one host.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.load.flags import API_KEY_VARIABLE
from loadtest.load.prompts import PromptMaker
from loadtest.load.schedule import Scheduled
from loadtest.load.settings import LoadSettings
from loadtest.witness.sample import Sample
from shared.errors import ConfigError, UnavailableError

VERSION = "0.8.1"
"""The one that this was written for; its report says which one ran."""
LEAD_S = 5.0
"""All moments are so much later: its clock starts before the process that reads its rows is up."""
TAIL_S = 10.0
"""One more request so long after the last, which does not count: a run of 0.8.1 ends without
waiting for the request that finishes last."""
REPORT = "report.json"

_DATA = "requests.jsonl"
_SCENARIO = "scenario.json"
_LOG = "guidellm.log"
_LOG_TAIL = 2_000
_START_S = 300.0
"""Longest time for its imports and its files, beside the load itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run of it left."""

    sample: Sample
    """Its own figures."""
    version: str
    """Of the program that ran."""


def find_program(given: str) -> str:
    """Path of the program.

    Raises:
        ConfigError: there is none.
    """
    found = shutil.which(given or "guidellm")
    if found is None:
        where = f"at {given!r}" if given else "on PATH"
        raise ConfigError(
            f"there is no guidellm {where}: it is no part of Tandem, as its packages would change "
            "ours; `python -m venv witness && witness/bin/pip install "
            f"guidellm=={VERSION}`, then give --guidellm witness/bin/guidellm"
        )
    return found


def run_guidellm(
    program: str,
    folder: Path,
    *,
    settings: LoadSettings,
    schedule: Sequence[Scheduled],
    prompts: PromptMaker,
    model: str,
) -> Report:
    """One run of it.

    Args:
        program: its path.
        folder: takes its data set, scenario, log and report.
        settings: of the same run of ours.
        schedule: requests and their moments.
        prompts: makes their prompts.
        model: served model.

    Raises:
        UnavailableError: it failed, or left no report that can be read.
    """
    folder.mkdir(parents=True)
    rows = "".join(json.dumps(row) + "\n" for row in data_rows(schedule, prompts))
    (folder / _DATA).write_text(rows, encoding="utf-8")
    scenario = scenario_of(settings, folder=folder, requests=len(schedule), model=model)
    (folder / _SCENARIO).write_text(json.dumps(scenario, indent=1) + "\n", encoding="utf-8")
    last_s = schedule[-1][0].due_s
    limit_s = _START_S + LEAD_S + last_s + TAIL_S + settings.request_timeout_s
    _run(program, folder, timeout_s=limit_s)
    return read_report(folder / REPORT, span_s=last_s - schedule[0][0].due_s)


def data_rows(schedule: Sequence[Scheduled], prompts: PromptMaker) -> list[dict[str, Any]]:
    """Its data set: one row a request, in order of their moments, and the uncounted one."""
    rows: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": prompts.make(request).text}],
            "output_tokens_count": request.answer_tokens,
            "relative_timestamp": LEAD_S + arrival.due_s,
        }
        for arrival, request in schedule
    ]
    end = {"output_tokens_count": 1, "relative_timestamp": rows[-1]["relative_timestamp"] + TAIL_S}
    return [*rows, rows[-1] | end]


def scenario_of(
    settings: LoadSettings, *, folder: Path, requests: int, model: str
) -> dict[str, Any]:
    """Its settings file; the API key is not in it."""
    overrides = settings.overrides.to_json()
    body = {"temperature": 0, **({"tandem": overrides} if overrides else {})}
    return {
        "spec": {
            "backend": {
                "kind": "openai_http",
                "target": settings.host,
                "model": model,
                "request_format": "/v1/chat/completions",
                "stream": True,
                "timeout": settings.request_timeout_s,
                "extras": {"body": body},
            },
            "profile": {"kind": "replay", "schedule_turn": "timestamp"},
            "constraints": [{"kind": "max_requests", "count": requests + 1}],
            "data": [{"kind": "json_file", "path": str((folder / _DATA).absolute())}],
            "outputs": [{"kind": "json", "path": str((folder / REPORT).absolute())}],
            "metrics": {"kind": "generative", "sample_size": 0},
        }
    }


def read_report(file: Path, *, span_s: float) -> Report:
    """What a report says of its requests, the uncounted one left out.

    Args:
        file: the report.
        span_s: from the first request's moment to the last one's.

    Raises:
        UnavailableError: it is missing, or not of the form that is known here.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        (benchmark,) = found["benchmarks"]
        by_status = benchmark["requests"]
        starts = [row["request_start_time"] for row in by_status["successful"]]
        begun = min(starts, default=0.0)
        end = begun + span_s + TAIL_S / 2
        done = [row for row in by_status["successful"] if row["request_start_time"] < end]
        sample = Sample(
            ttft_s=tuple(row["time_to_first_token_ms"] / 1000 for row in done),
            late_s=tuple(max(0.0, row["request_dispatch_delay"]) for row in done),
            tokens=tuple((row["prompt_tokens"], row["output_tokens"]) for row in done),
            failed=len(by_status["errored"]) + len(by_status["incomplete"]),
        )
        return Report(sample=sample, version=found["metadata"]["guidellm_version"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(
            f"{file} is no report of guidellm {VERSION} ({type(error).__name__}: {error}): it "
            f"broke off, or its form has changed; see {_LOG} beside it, or install that version"
        ) from error


def _run(program: str, folder: Path, *, timeout_s: float) -> None:
    log = folder / _LOG
    with log.open("w", encoding="utf-8") as sink:
        try:
            code: int | str = subprocess.run(  # noqa: S603  the program that the user names
                [program, "run", "--config", _SCENARIO, "--disable-console-interactive"],
                cwd=folder,
                env=_environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                timeout=timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = f"none within {timeout_s:.0f} s"
    if code != 0:
        said = log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL:]
        raise UnavailableError(
            f"guidellm failed (exit code {code}); the end of {log} says why:\n{said}"
        )


def _environment(folder: Path) -> Mapping[str, str]:
    """Ours, no network for it, one process, its caches beside its results."""
    own = {
        "HF_HOME": str((folder / "hf").absolute()),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "GUIDELLM__MAX_WORKER_PROCESSES": "1",
    }
    key = os.environ.get(API_KEY_VARIABLE)
    if key:
        own["GUIDELLM__SPEC__BACKEND__API_KEY"] = key
    return os.environ | own

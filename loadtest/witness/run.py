"""Both tools by turns, on one server, and what they come to."""

import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from urllib.parse import urlsplit

from loadtest.load.flags import API_KEY_VARIABLE
from loadtest.load.judge import Verdict as LoadVerdict
from loadtest.load.launch import run_locust
from loadtest.load.prompts import PromptMaker
from loadtest.load.results import SUMMARY, read_summary
from loadtest.load.schedule import schedule_of
from loadtest.load.served import Served, ask_server
from loadtest.machine import machine_facts
from loadtest.witness.guidellm import Report, run_guidellm
from loadtest.witness.plan import OURS, THEIRS, WARM_UP, WITNESS_FILE, WitnessPlan
from loadtest.witness.sample import Sample, check_same_work, our_sample
from loadtest.witness.summary import EXIT_CODES, Pair, Verdict, table_of, witness_summary
from shared.errors import UnavailableError

_CONNECTIONS = 21
_CONNECT_S = 10.0


def run_witness(plan: WitnessPlan, program: str, *, command: str) -> int:
    """Runs both tools and writes `witness.json`.

    Args:
        plan: what is run.
        program: guidellm's.
        command: what was asked for, for the record.

    Returns:
        Exit code of the verdict.

    Raises:
        UnavailableError: a run failed, or two runs did other work.
    """
    machine = machine_facts(command=command)
    settings = plan.settings(0)
    key = os.environ.get(API_KEY_VARIABLE, "")
    served = ask_server(settings.host, model=settings.model, api_key=key)
    connect_s = connection_time(settings.host)
    print("warm-up: ours, not counted", file=sys.stderr)
    _run_ours(plan.warm_up_flags(), plan.out / "runs" / WARM_UP)
    samples: dict[tuple[int, str], Sample] = {}
    pairs: list[Pair] = []
    version = ""
    for number, (repeat, tool) in enumerate(plan.order(), start=1):
        print(f"run {number} of {2 * plan.repeats}: {tool}, repeat {repeat + 1}", file=sys.stderr)
        if tool == OURS:
            samples[repeat, tool] = _run_ours(plan.run_flags(repeat), plan.folder(repeat, tool))
        else:
            report = _run_theirs(plan, repeat, program=program, served=served)
            samples[repeat, tool], version = report.sample, report.version
        if number % 2 == 0:
            pairs.append(_pair(plan, repeat, samples))
    facts = {
        "tool": {"name": "guidellm", "version": version},
        "connect_s": connect_s,
        "server": served.to_json(),
        "settings": settings.to_json() | {"out": str(plan.out)},
        **machine,
    }
    summary = witness_summary(pairs, within=plan.within, facts=facts)
    text = json.dumps(summary, indent=1) + "\n"
    (plan.out / WITNESS_FILE).write_text(text, encoding="utf-8")
    print(table_of(summary), file=sys.stderr)
    print(f"{summary['verdict']}: results in {plan.out}", file=sys.stderr)
    return EXIT_CODES[Verdict(summary["verdict"])]


def _run_ours(flags: Sequence[str], folder: Path) -> Sample:
    code = run_locust(flags)
    if not (folder / SUMMARY).exists():
        raise UnavailableError(
            f"the run of {folder.name} did not begin (exit code {code}): its reason is above; mend "
            "it and start again with another --out"
        )
    found = read_summary(folder)["verdict"]
    if found in {LoadVerdict.CLIENT_SATURATED, LoadVerdict.INCOMPLETE}:
        raise UnavailableError(
            f"the run of {folder.name} says nothing of the server ({found}): lower --rate, or give "
            "the generator a core of its own, and start again with another --out"
        )
    return our_sample(folder)


def _run_theirs(plan: WitnessPlan, repeat: int, *, program: str, served: Served) -> Report:
    settings = plan.settings(repeat)
    return run_guidellm(
        program,
        plan.folder(repeat, THEIRS),
        settings=settings,
        schedule=schedule_of(settings),
        prompts=PromptMaker(served.words, seed=settings.seed),
        model=served.model,
    )


def _pair(plan: WitnessPlan, repeat: int, samples: dict[tuple[int, str], Sample]) -> Pair:
    ours, theirs = samples[repeat, OURS], samples[repeat, THEIRS]
    planned = len(schedule_of(plan.settings(repeat)))
    check_same_work(ours, theirs, planned=planned, repeat=repeat)
    first = next(tool for number, tool in plan.order() if number == repeat)
    return Pair(seed=plan.seed + repeat, first=first, ours=ours, theirs=theirs)


def connection_time(url: str) -> float:
    """Median time of a TCP connection to a server, in seconds; it has answered before."""
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    times = []
    for _ in range(_CONNECTIONS):
        began = perf_counter()
        socket.create_connection(address, timeout=_CONNECT_S).close()
        times.append(perf_counter() - began)
    return median(times)

"""`tandem bench gateway`: runs the gateway's benchmark and prints its tables."""

import json
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from deploy.bench import progress_to
from deploy.launch import supervised_command
from loadtest.gateway_cost.run import ARMS, GatewayCost
from loadtest.gateway_cost.settings import CostSettings
from loadtest.machine import commit_text


def run_gateway(settings: CostSettings, *, command: str, as_json: bool) -> None:
    """Runs the benchmark and prints it.

    Raises:
        TandemError: a process did not start, a stream broke, or a text was not the workers'.
    """
    bench = GatewayCost(settings, progress=progress_to(as_json=as_json))
    result = uvloop.run(bench.run(command=command))
    if as_json:
        print(json.dumps(result))
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(_first_tokens(result["first_token"]))
    if result["long_prompts"]:
        console.print(_long_prompts(result["long_prompts"]))
    for size, flows in result["throughput"].items():
        console.print(_flows(flows, tokens_per_message=size))
    console.print(_limits(result["limits"]))
    hardware = result["hardware"]
    console.print(
        f"{result['command']}\n{result['parity']['answers_compared']} answers compared with what "
        f"the workers sent, all equal\n{hardware['cpu']}, {hardware['cores']} cores, load "
        f"{hardware['load_average'][0]:.1f}; commit {commit_text(result)}"
    )


def gateway_command(flags: list[str]) -> list[str]:
    """The command line of a gateway that ends with the benchmark."""
    return supervised_command("gateway", flags)


def command_line() -> str:
    """What was typed, to be typed again."""
    return shlex.join(["tandem", *sys.argv[1:]])


def _first_tokens(arms: Mapping[str, Any]) -> Table:
    table = Table(
        "arm", "requests", "p50", "p90", "p99", "max", "p50 by run", "client late p99",
        title="Time to first token in ms, less what the workers took",
    )  # fmt: skip
    for name in ARMS:
        arm = arms[name]
        added = arm["added_ttft_ms"]
        table.add_row(
            name,
            str(arm["requests"]),
            *(f"{added[column]:.2f}" for column in ("p50", "p90", "p99", "max")),
            _span(arm["added_ttft_p50_ms_by_run"], digits=2),
            f"{arm['client_late_ms_p99']:.2f}",
        )
    return table


def _long_prompts(lengths: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table:
    table = Table(
        "prompt, ids", "client", "requests", "added ms",
        title="Time to first token of long prompts in ms, less what the workers took",
    )  # fmt: skip
    for tokens, clients in lengths.items():
        for name, added in clients.items():
            table.add_row(tokens, name, str(added["requests"]), _span(added, digits=2))
    return table


def _flows(flows: Mapping[str, Any], *, tokens_per_message: str) -> Table:
    table = Table(
        "arm", "tokens/s", "of the relay", "CPU s per 1,000 tokens", "of workers", "of client",
        "tokens a chunk",
        title=f"As fast as tokens are taken, {tokens_per_message} in a worker's message",
    )  # fmt: skip
    for name in ARMS:
        arm = flows[name]
        cpu = arm["cpu_s_per_1000_tokens"]
        ratio = flows["tokens_per_s_of_relay"]
        table.add_row(
            name,
            _span(arm["tokens_per_s"], digits=0),
            _span(ratio, digits=2) if name != ARMS[-1] else "1",
            *(f"{cpu[process]['median']:.4f}" for process in (name, "workers", "client")),
            f"{arm['tokens_per_chunk']['median']:.2f}",
        )
    return table


def _limits(limits: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table("limit", "measured", "must be", "met", title="Limits, for 2 cores")
    for name, limit in limits.items():
        bound = f"<= {limit['at_most']:g}" if "at_most" in limit else f">= {limit['at_least']:g}"
        table.add_row(name, f"{limit['measured']:,.2f}", bound, "yes" if limit["met"] else "NO")
    return table


def _span(found: Mapping[str, float], *, digits: int) -> str:
    low, middle, high = (f"{found[key]:,.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"

"""`tandem bench transfer`: starts the benchmark as roles are started, and prints its table."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.launch import role_environment
from loadtest.machine import commit_text
from loadtest.micro.transfer import check_settings
from loadtest.micro.transfer_ground import check_memory_here
from shared.errors import InternalError, TransportError
from shared.types.memory_kind import MemoryKind

_MODULE = "loadtest.micro.transfer"


def run_transfer(
    *,
    sizes: Sequence[int],
    transports: Sequence[str],
    repeats: int,
    as_json: bool,
    memory: str = MemoryKind.HOST.value,
) -> None:
    """Runs the transfer benchmark and prints it.

    Raises:
        ConfigError: a size or a transport does not exist, or no such memory is here.
        TransportError: the benchmark failed; it said why on standard error.
    """
    result = measure(
        sizes=sizes, transports=transports, repeats=repeats, quiet=as_json, memory=memory
    )
    if as_json:
        print(json.dumps(result))
        return
    print_result(result)


def print_result(result: Mapping[str, Any]) -> None:
    """Prints the table of a run, and where it ran."""
    console = Console(soft_wrap=True, highlight=False)
    console.print(_table(result))
    for name, reason in result["rejected"].items():
        console.print(f"{name} was not measured: {reason}")
    memory, hardware = result["memory"], result["hardware"]
    if memory["kind"] == MemoryKind.DEVICE.value:
        console.print(f"memory of {memory['sender']} to memory of {memory['receiver']}")
    console.print(
        f"{result['command']}\n{hardware['cpu']}, {hardware['cores']} cores, load "
        f"{hardware['load_average'][0]:.1f}; chunks of {result['chunk_bytes']} bytes, nixl writes "
        f"{result['direct_bytes']} at once; allocator variables of the launchers; commit "
        f"{commit_text(result)}"
    )


def measure(
    *,
    sizes: Sequence[int],
    transports: Sequence[str],
    repeats: int,
    quiet: bool,
    memory: str = MemoryKind.HOST.value,
) -> dict[str, Any]:
    """Runs the benchmark in a process of its own: allocators read their variables at its start.

    Raises:
        ConfigError: a size or a transport does not exist, or no such memory is here.
        TransportError: it failed.
    """
    check_settings(sizes_mib=sizes, transports=transports, repeats=repeats)
    check_memory_here(memory)
    command = [sys.executable, "-P", "-m", _MODULE, "--repeats", str(repeats)]
    command += ["--memory", memory, "--sizes", *map(str, sizes)]
    if transports:
        command += ["--transports", *transports]
    hidden = quiet and not sys.stderr.isatty()
    done = subprocess.run(
        command,
        env=role_environment(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if hidden else None,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        why = (done.stderr or "see above").strip().splitlines()
        raise TransportError(
            f"the benchmark ended with code {done.returncode} ({why[-1] if why else 'no word'}): "
            "a transport failed or a process was killed; run it again without --json for more"
        )
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise InternalError("the benchmark printed no JSON object: report this") from error
    return result


def _table(result: Mapping[str, Any]) -> Table:
    table = Table("MiB", "arm", "GB/s", "of the bare copy", "times grpc")
    for size in result["sizes"]:
        for name, speed in size["gbps"].items():
            table.add_row(
                str(size["mib"]),
                name,
                _spread(speed),
                _spread(size["share_of_copy"].get(name)),
                _spread(size["ratio_to_grpc"].get(name)),
            )
    return table


def _spread(values: Mapping[str, float] | None) -> str:
    if values is None:
        return "-"
    return f"{values['median']:.2f} ({values['min']:.2f} to {values['max']:.2f})"

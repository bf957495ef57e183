"""`tandem up`: runs a cluster in the foreground until a signal or until a role dies."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from deploy.banner import print_banner
from deploy.cluster import Cluster, Endpoints, PhaseSink
from deploy.config import UpConfig
from deploy.ports import check_ports
from deploy.role_process import LineSink, error_of_exit
from deploy.settings import check_plain
from shared.config.exit_codes import ExitCode
from shared.config.flags import parse_flags
from shared.config.loader import load_config


def run_up(argv: list[str]) -> int:
    """Runs `tandem up` and returns its exit code.

    Raises:
        TandemError: a setting is wrong, or a role did not start or died.
    """
    parsed = parse_flags(UpConfig, prog="tandem up", section="up", argv=argv)
    config = load_config(UpConfig, section="up", flags=parsed.values, file=parsed.file).value
    check_ports(config)
    check_plain(parsed.file)
    with log_sink(config.log_dir) as on_line:
        return asyncio.run(_serve(config, on_line=on_line, settings_file=parsed.file))


async def _serve(config: UpConfig, *, on_line: LineSink, settings_file: Path | None) -> int:
    async def until_death(cluster: Cluster, endpoints: Endpoints) -> int:
        await print_banner(endpoints, config=config)
        role = await cluster.wait_death()
        raise error_of_exit(role.spec.name, await role.wait_ended(), list(role.tail))

    return await run_cluster(
        config,
        body=until_death,
        on_line=on_line,
        on_phase=phase_printer(),
        interrupted=ExitCode.OK,
        settings_file=settings_file,
    )


async def run_cluster(
    config: UpConfig,
    *,
    body: Callable[[Cluster, Endpoints], Awaitable[int]],
    on_line: LineSink,
    on_phase: PhaseSink,
    interrupted: int,
    settings_file: Path | None = None,
) -> int:
    """Starts a cluster, runs `body`, takes the cluster down and returns the exit code.

    The first SIGINT or SIGTERM ends the body, and the code is then `interrupted`; the second
    kills every role, which is a failure: requests were cut.
    """
    cluster = Cluster(config, on_line, on_phase, settings_file)

    async def start_and_run() -> int:
        return await body(cluster, await cluster.start())

    work = asyncio.create_task(start_and_run())
    killed = asyncio.Event()
    with _stop_signals(work, cluster, killed):
        try:
            code = await work
        except asyncio.CancelledError:
            code = interrupted
        finally:
            await cluster.stop()
    return ExitCode.FAILURE if killed.is_set() else code


@contextmanager
def _stop_signals(
    work: asyncio.Task[int], cluster: Cluster, killed: asyncio.Event
) -> Iterator[None]:
    seen = 0

    def on_signal() -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            cluster.on_phase("stopping; a second signal kills")
            work.cancel()
            return
        cluster.on_phase("second signal: killing every role")
        killed.set()
        for role in cluster.roles:
            role.signal(signal.SIGKILL)

    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextmanager
def log_sink(folder: Path | None) -> Iterator[LineSink]:
    """A sink of log lines: one file a role in `folder`, or standard error with the role's name."""
    if folder is None:
        yield lambda name, line: print(f"{name:<10} {line}", file=sys.stderr, flush=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, TextIO] = {}

    def write(name: str, line: str) -> None:
        if name not in files:
            files[name] = stack.enter_context((folder / f"{name}.log").open("a", encoding="utf-8"))
        files[name].write(line + "\n")
        files[name].flush()

    with contextlib.ExitStack() as stack:
        yield write


def phase_printer() -> PhaseSink:
    """Prints each phase to standard error with the seconds since the start."""
    began = time.monotonic()
    return lambda text: print(
        f"tandem     [{time.monotonic() - began:5.1f} s] {text}", file=sys.stderr, flush=True
    )

"""`python -m prefill_service`: one prefill worker as a process."""

import asyncio
import os
import signal
import sys

import structlog
import uvloop

from prefill_service.app import PrefillApp
from prefill_service.config import PrefillConfig
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.config.flags import parse_flags
from shared.config.interpreter import keep_objects, switch_threads_soon
from shared.config.loader import LoadedConfig, load_config
from shared.errors import TandemError
from shared.telemetry.logs import configure_logging

SIGNAL_EXIT = 128
"""A process that a signal ended exits with this plus the signal's number."""

_log = structlog.get_logger(__name__)


def main(argv: list[str]) -> int:
    """Runs a worker until SIGTERM or SIGINT; returns the exit code of `--help`."""
    parsed = parse_flags(PrefillConfig, prog="tandem prefill", section="prefill", argv=argv)
    try:
        loaded = load_config(
            PrefillConfig, section="prefill", flags=parsed.values, file=parsed.file
        )
        return uvloop.run(serve(loaded))
    except TandemError as error:
        sys.stderr.write(f"tandem prefill: {error.message}\n")
        return exit_code_for(error)


async def serve(loaded: LoadedConfig[PrefillConfig]) -> int:
    """Starts a worker, waits for the first signal, drains; a second signal ends at once.

    Raises:
        TandemError: it cannot start.
    """
    app = PrefillApp(loaded.value)
    configure_logging(role="prefill", worker_id=app.worker_id, log_format=loaded.value.log_format)
    _log.info("settings that are not the default", settings=loaded.changed())
    stop = _stop_on_signals()
    try:
        if await _started(app, stop):
            keep_objects()
            switch_threads_soon()
            sys.stdout.write(app.ready_line() + "\n")
            sys.stdout.flush()
            await stop.wait()
            await app.drain()
    finally:
        await app.close()
    return ExitCode.OK


async def _started(app: PrefillApp, stop: asyncio.Event) -> bool:
    """Starts the app; False when a signal came first."""
    start = asyncio.ensure_future(app.start())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({start, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if start.done():
        stopped.cancel()
        start.result()
        return True
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    return False


def _stop_on_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; the second ends the process at once."""
    stop = asyncio.Event()

    def arrived(number: signal.Signals) -> None:
        if stop.is_set():
            _log.warning("second signal: ending at once", signal=number.name)
            os._exit(SIGNAL_EXIT + number)
        _log.info("draining; a second signal ends at once", signal=number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, arrived, number)
    return stop


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

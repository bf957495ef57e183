"""The process of a decode worker: `python -m decode_service [flags]`."""

import asyncio
import os
import signal
import sys

import structlog
import uvloop

from decode_service.app import ROLE, DecodeServer
from decode_service.config import DecodeConfig
from decode_service.rpc.local_prefill import LocalPrefill, OpenLocalPrefill
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.config.flags import parse_flags
from shared.config.interpreter import keep_objects
from shared.config.loader import LoadedConfig, load_config
from shared.errors import TandemError
from shared.telemetry.logs import configure_logging

_log = structlog.get_logger(__name__)


def main(argv: list[str], *, open_local: OpenLocalPrefill | None = None) -> int:
    """Runs one worker until it is told to stop; returns the exit code.

    Args:
        argv: flags.
        open_local: makes the prefill engine of a worker that reads prompts itself; None: this
            process can have none.
    """
    flags = parse_flags(DecodeConfig, prog="tandem decode", section=ROLE, argv=argv)
    try:
        loaded = load_config(DecodeConfig, section=ROLE, flags=flags.values, file=flags.file)
        local = None
        if loaded.value.local_prefill_tokens and open_local is not None:
            local = open_local(loaded.value, settings_file=flags.file)
        return uvloop.run(_serve(loaded, local))
    except TandemError as error:
        sys.stderr.write(f"tandem decode: {error.message}\n")
        return exit_code_for(error)


async def _serve(loaded: LoadedConfig[DecodeConfig], local: LocalPrefill | None) -> int:
    server = DecodeServer(loaded.value, local=local)
    configure_logging(role=ROLE, worker_id=server.worker_id, log_format=loaded.value.log_format)
    _log.info("settings that are not the default", settings=loaded.changed())
    _handle_signals(server)
    try:
        if await _started(server):
            keep_objects()
            sys.stdout.write(server.ready_line() + "\n")
            sys.stdout.flush()
            await server.finished.wait()
    finally:
        await server.stop()
    return server.exit_code


async def _started(server: DecodeServer) -> bool:
    """Starts the server; False when it was told to stop first."""
    starting = asyncio.create_task(server.start())
    told = asyncio.create_task(server.finished.wait())
    await asyncio.wait({starting, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if starting.done():
        starting.result()
        return True
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return False


def _handle_signals(server: DecodeServer) -> None:
    """The first signal drains; the second ends the process at once, whatever is running."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def first() -> None:
        for number in signals:
            loop.add_signal_handler(number, os._exit, int(ExitCode.FAILURE))
        server.begin_drain()

    for number in signals:
        loop.add_signal_handler(number, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

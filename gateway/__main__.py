"""The gateway's process: `python -m gateway [flags]`."""

import asyncio
import gc
import os
import signal
import sys

import structlog
import uvloop

from gateway.app import Gateway
from gateway.config import GatewayConfig
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.config.flags import parse_flags
from shared.config.interpreter import keep_objects
from shared.config.loader import load_config
from shared.errors import TandemError
from shared.telemetry.logs import configure_logging

SECTION = "gateway"

_YOUNG_OBJECTS = 20_000

_log = structlog.get_logger(__name__)


def main(argv: list[str]) -> int:
    """Runs until SIGTERM or SIGINT; the first one drains, the second one ends at once.

    Returns:
        The exit code: 0 after a drain, else what the error stands for.
    """
    flags = parse_flags(GatewayConfig, prog="tandem gateway", section=SECTION, argv=argv)
    try:
        loaded = load_config(GatewayConfig, section=SECTION, flags=flags.values, file=flags.file)
        config = loaded.value
        gateway_id = config.worker_id
        configure_logging(role=SECTION, worker_id=gateway_id, log_format=config.log_format)
        _log.info("settings that are not the default", settings=loaded.changed())
        uvloop.run(_serve(config))
    except TandemError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return int(exit_code_for(error))
    return int(ExitCode.OK)


async def _serve(config: GatewayConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop)
    gateway = Gateway(config)
    try:
        await gateway.start()
        _calm_collector()
        sys.stdout.write(f"{gateway.ready_line()}\n")
        sys.stdout.flush()
        await stop.wait()
        _log.info("draining", at_most_s=config.drain_timeout_s)
        await gateway.drain()
    finally:
        await gateway.close()


def _calm_collector() -> None:
    """A request makes thousands of objects that die by themselves.

    With Python's own settings the collector looks through them several times a request, while its
    first token waits.
    """
    keep_objects()
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])


def _on_signal(stop: asyncio.Event) -> None:
    if stop.is_set():
        os._exit(int(ExitCode.FAILURE))
    stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

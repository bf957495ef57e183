"""A server that goes without having been stopped leaves no reference to itself in a log record."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from shared.rpc.server import build_server


class Looker(logging.Handler):
    """Notes each record's text and how many objects it holds; keeps no record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.seen: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.getMessage(), len(record.args or ())))


@contextmanager
def lines_of_grpc() -> Iterator[Looker]:
    """Sees every line of grpc, and alone; a fixture would not be.

    pytest's handler keeps records. It stands at the root and, from the start of a test's call, at
    every logger that does not hand on by then.
    """
    looker, log = Looker(), logging.getLogger("grpc")
    level = log.level
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(looker)
    try:
        yield looker
    finally:
        log.removeHandler(looker)
        log.propagate = True
        log.setLevel(level)


async def test_the_line_about_a_server_never_started_holds_no_server() -> None:
    with lines_of_grpc() as looker:
        server = build_server(host="127.0.0.1", port=0, service_names=[])
        del server
        gc.collect()
    told = [held for text, held in looker.seen if "AioServer" in text]
    assert told, "grpc says nothing any more; the filter of shared/rpc/server.py may go"
    assert set(told) == {0}

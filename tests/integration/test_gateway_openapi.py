"""The OpenAPI document against a running gateway: nothing it says is wrong, nothing ends in a 5xx.

`make test` tries a few examples of each operation; `-m slow` tries many more.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, assume, settings
from schemathesis.checks import positive_data_acceptance
from starlette.routing import Route

from gateway.openapi.document import build_document
from gateway.routes.admin import LIVE
from gateway.routes.page import PAGE, PAGE_FILES
from gateway.routes.table import Endpoints, rest_app
from tests.support.gateway_rig import Rig, running_rig, strict_json

FEW, MANY = 12, 200
WORKERS = {"p0", "d0"}

DOCUMENT = build_document()
schema = schemathesis.openapi.from_dict(DOCUMENT)
# The live feed has no end; it has a test of its own.
finite = schema.exclude(path=LIVE)


class RunningRig:
    """A gateway and simulated workers on a loop of their own, beside blocking callers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self.rig: Rig
        self._running: Future[None]

    def start(self) -> None:
        """Returns when the gateway answers."""
        self._thread.start()
        self._running = asyncio.run_coroutine_threadsafe(self._run(), self._loop)
        assert self._started.wait(30)

    def stop(self) -> None:
        """Ends everything."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._running.result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _run(self) -> None:
        async with running_rig(self._folder) as rig:
            self.rig = rig
            self._started.set()
            await self._stop.wait()


@pytest.fixture(scope="module")
def rig(folder: Path) -> Iterator[Rig]:
    running = RunningRig(folder)
    running.start()
    yield running.rig
    running.stop()


def check(case: schemathesis.Case[Any], rig: Rig) -> None:
    """One example: whatever was sent, the answer is one that the document describes."""
    assume(not WORKERS & set((case.path_parameters or {}).values()))  # a drain would be obeyed
    # What a schema allows may still be refused: a prompt too long, an id outside the vocabulary.
    case.call_and_validate(base_url=rig.url, timeout=20, excluded_checks=[positive_data_acceptance])


@finite.parametrize()
@settings(max_examples=FEW, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_does_as_it_says(case: schemathesis.Case[Any], rig: Rig) -> None:
    check(case, rig)


@pytest.mark.slow
@pytest.mark.timeout(900)
@finite.parametrize()
@settings(max_examples=MANY, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_does_as_it_says_at_length(case: schemathesis.Case[Any], rig: Rig) -> None:
    check(case, rig)


def test_the_document_is_served_and_well_formed(rig: Rig) -> None:
    schema.validate()
    response = httpx.get(f"{rig.url}/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json() == DOCUMENT


def test_every_route_is_described() -> None:
    app = rest_app(Endpoints(**{name: MagicMock() for name in Endpoints.__slots__}))
    paths = {route.path.replace(":path", "") for route in app.routes if isinstance(route, Route)}
    assert paths - {PAGE, PAGE_FILES.replace(":path", "")} == set(DOCUMENT["paths"])


def test_the_live_feed_is_as_described(rig: Rig) -> None:
    described: dict[str, Any] = {**DOCUMENT, "$ref": "#/components/schemas/Live"}
    live = jsonschema_rs.validator_for(described)
    with httpx.stream("GET", f"{rig.url}{LIVE}", timeout=20) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        for line in response.iter_lines():
            if line.startswith("data: "):
                live.validate(strict_json(line.removeprefix("data: ")))
                return

"""The gateway's live state, once a second, as `tandem top` reads it (GET /admin/live)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from deploy.rest_client import refusal_of, unreachable
from shared.errors import TransportError

FEED = "/admin/live"

_DATA = "data: "

State = dict[str, Any]
"""One state: readiness, queue, workers, traffic of the last minute, KV flows."""


def live_states(client: httpx.Client) -> Iterator[State]:
    """States as they come; ends when the gateway ends the feed.

    Raises:
        TandemError: nobody answers, the key does not allow it, or it is no Tandem gateway.
    """
    try:
        with client.stream("GET", FEED) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                raise refusal_of(response)
            for line in response.iter_lines():
                if line.startswith(_DATA):
                    yield _state(line.removeprefix(_DATA))
    except httpx.TransportError as error:
        raise unreachable(client, error) from error


def _state(payload: str) -> State:
    try:
        state = json.loads(payload)
    except ValueError as error:
        raise TransportError(
            f"the feed carried {payload[:80]!r}, which is no JSON: is this a Tandem gateway?"
        ) from error
    if not isinstance(state, dict) or "workers" not in state or "traffic" not in state:
        raise TransportError(
            f"the feed carried {payload[:80]!r}, which is no state of a gateway: another version?"
        )
    return state

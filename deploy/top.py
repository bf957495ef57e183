"""`tandem top`: a live view of a running gateway and its workers."""

import json
from time import sleep as pause

import httpx
from rich.console import Console
from rich.live import Live

from deploy.chat import open_client
from deploy.live_feed import State, live_states
from deploy.top_view import screen
from shared.errors import TransportError, UnavailableError

_AGAIN_S = 1.0
_LOOK_S = 30.0


def run_top(*, url: str, once: bool, as_json: bool, console: Console | None = None) -> int:
    """Shows the state until Ctrl-C, or once; returns the exit code.

    A gateway that goes away is waited for; one that is not there at the start is an error.

    Args:
        url: base URL of the gateway.
        once: show one state and end.
        as_json: print states as JSON, one a line, instead of tables.
        console: where to draw; standard output by default.

    Raises:
        TandemError: the gateway cannot be reached at the start, or does not allow it.
    """
    console = console or Console()
    with open_client(url) as client:
        client.timeout = httpx.Timeout(_LOOK_S)
        if once:
            _show(_first(client), url=url, as_json=as_json, console=console)
            return 0
        if as_json:
            for state in live_states(client):
                print(json.dumps(state), flush=True)
            return 0
        return _watch(client, url=url, console=console)


def _first(client: httpx.Client) -> State:
    for state in live_states(client):
        return state
    raise TransportError("the gateway ended its feed without a state: it is shutting down; retry")


def _show(state: State, *, url: str, as_json: bool, console: Console) -> None:
    if as_json:
        print(json.dumps(state))
    else:
        console.print(screen(state, source=url))


def _watch(client: httpx.Client, *, url: str, console: Console) -> int:
    state = _first(client)
    with Live(
        screen(state, source=url), console=console, screen=console.is_terminal, auto_refresh=False
    ) as live:
        while True:
            try:
                for state in live_states(client):
                    live.update(screen(state, source=url), refresh=True)
            except UnavailableError as error:
                live.update(screen(_gone(state, error.message), source=url), refresh=True)
            pause(_AGAIN_S)


def _gone(state: State, why: str) -> State:
    """The last state, saying that it is not the present one."""
    return {**state, "ready": False, "detail": f"no news: {why}"}

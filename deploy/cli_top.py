"""The command `tandem top`."""

from typing import Annotated

import typer

_URL = "http://127.0.0.1:8000"


def top(
    url: Annotated[str, typer.Option(help="Base URL of the gateway.")] = _URL,
    once: Annotated[bool, typer.Option("--once", help="One state, then end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="States as JSON, one a line and second.")
    ] = False,
) -> None:
    """Workers, queue, KV use, TTFT and tokens/s of a running gateway, every second until Ctrl-C.

    With API keys, TANDEM_API_KEY must hold an admin key.

    JSON keys: ready, phase, detail, requests_in_flight, queue {requests, tokens, limit_tokens},
    workers [{worker_id, role, address, draining, reachable, running, queued_tokens, free_pages,
    total_pages, transports, device}], traffic {window_s, tokens_per_s, requests, ttft_ms, phases_ms
    (each {p50, p95, count}), recent}, flows [{prefill, decode, transport, handoffs, kv_bytes,
    transfer_ms}], discovery, registry, quotas.
    """
    from deploy.top import run_top

    code = run_top(url=url, once=once, as_json=as_json)
    if code:
        raise typer.Exit(code)

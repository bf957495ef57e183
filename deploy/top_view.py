"""The screen of `tandem top`: one live state of the gateway as tables."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.live_feed import State

_BAR_WIDTH = 16
_FULL = 0.95
_BUSY = 0.8
_RECENT = 8
_GIB = 2**30
_MIB = 2**20


def screen(state: State, *, source: str) -> RenderableType:
    """Everything on one page.

    Args:
        state: as the gateway tells it.
        source: whose state it is, for the title.
    """
    parts: list[RenderableType] = [_summary(state), _workers(state["workers"])]
    if state.get("flows"):
        parts.append(_flows(state["flows"]))
    parts.append(_recent(state["traffic"]["recent"]))
    return Panel(Group(*parts), title=f"Tandem at {source}", subtitle="Ctrl-C ends")


def _summary(state: State) -> Table:
    traffic, queue = state["traffic"], state["queue"]
    table = Table.grid(padding=(0, 3))
    ready = (
        Text("ready", style="green")
        if state["ready"]
        else Text(f"not ready: {state['detail']}", style="red")
    )
    table.add_row("state", ready, "in flight", str(state["requests_in_flight"]))
    table.add_row(
        "queue",
        f"{queue['requests']} requests, {queue['tokens']} of {queue['limit_tokens']} tokens",
        "tokens/s",
        f"{traffic['tokens_per_s']:.1f}",
    )
    table.add_row(
        "TTFT p50 / p95",
        _spread(traffic["ttft_ms"]),
        f"answers in {traffic['window_s']:.0f} s",
        str(traffic["requests"]),
    )
    phases = ", ".join(
        f"{name} {_ms(spread['p50'])}" for name, spread in traffic["phases_ms"].items()
    )
    if phases:
        table.add_row("phases p50", phases)
    return table


def _workers(workers: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Workers", title_justify="left", expand=True)
    for name in ("worker", "role", "state", "device", "transports"):
        table.add_column(name)
    table.add_column("running", justify="right")
    table.add_column("queued tokens", justify="right")
    table.add_column("KV use")
    for worker in workers:
        table.add_row(
            worker["worker_id"],
            worker["role"],
            _worker_state(worker),
            worker["device"] or "-",
            ", ".join(worker["transports"]) or "-",
            str(worker["running"]),
            str(worker["queued_tokens"]),
            _kv_use(worker),
        )
    if not workers:
        table.add_row(Text("none is known", style="red"))
    return table


def _worker_state(worker: dict[str, Any]) -> Text:
    if worker["draining"]:
        return Text("draining", style="yellow")
    if not worker["reachable"]:
        return Text("out of reach", style="red")
    return Text("serving", style="green")


def _kv_use(worker: dict[str, Any]) -> RenderableType:
    total = worker["total_pages"]
    if not total:
        return Text("-", style="dim")
    used = total - worker["free_pages"]
    share = used / total
    style = "red" if share > _FULL else "yellow" if share > _BUSY else "green"
    row = Table.grid(padding=(0, 1))
    row.add_row(
        ProgressBar(
            total=total,
            completed=used,
            width=_BAR_WIDTH,
            complete_style=style,
            finished_style=style,
        ),
        f"{share:.0%} of {total} pages",
    )
    return row


def _flows(flows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="KV moved", title_justify="left", expand=True)
    for name in ("from", "to", "transport"):
        table.add_column(name)
    for name in ("handoffs", "bytes", "time after the prefill"):
        table.add_column(name, justify="right")
    for flow in flows:
        table.add_row(
            flow["prefill"],
            flow["decode"],
            flow["transport"],
            str(flow["handoffs"]),
            _bytes(flow["kv_bytes"]),
            f"{flow['transfer_ms'] / max(1, flow['handoffs']):.1f} ms each",
        )
    return table


def _recent(requests: Sequence[dict[str, Any]]) -> Table:
    table = Table(title="Last answers", title_justify="left", expand=True)
    table.add_column("request", overflow="ellipsis", no_wrap=True)
    table.add_column("endpoint")
    for name in ("prompt", "kept", "answer", "TTFT", "tokens/s"):
        table.add_column(name, justify="right")
    for request in requests[:_RECENT]:
        table.add_row(
            request["request_id"],
            request["endpoint"],
            str(request["prompt_tokens"]),
            str(request["kept_tokens"]),
            str(request["completion_tokens"]),
            _ms(request["ttft_ms"]),
            f"{request['tokens_per_s']:.1f}",
        )
    if not requests:
        table.add_row(Text("none yet", style="dim"))
    return table


def _spread(spread: dict[str, Any]) -> str:
    return f"{_ms(spread['p50'])} / {_ms(spread['p95'])}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _bytes(count: int) -> str:
    return f"{count / _GIB:.2f} GiB" if count >= _GIB else f"{count / _MIB:.2f} MiB"

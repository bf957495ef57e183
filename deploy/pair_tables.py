"""The tables of `tandem bench pair`, in Markdown: they are pasted where results are told."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadtest.machine import commit_text
from loadtest.pair.plan import ARMS

_MIB = 1 << 20
_MEANING = """\
First token: at the client, since the request was sent. The engine's own, by the prefill worker's
clock: from when a pass takes the prompt, its ids on the host, to when its first token's id is on
the host: sending the ids, the forward pass, selection and sampling, with no wait for room, transfer
or messages. Added: the difference, so gateway, queues, planning, messages and, with several at
once, the prompts before.
Exposed transfer: from the first token's computation to the adoption of the KV on the decode side.
"""
_EQUAL = """\
Equal: the slow pair's token at every step, or, at the first other one, a token that the slow pair
finds level with its own, by log-probability; steps behind it are of two texts and not compared.
Kept alike: the least share of the slow pair's kept positions that the other keeps.
"""


def print_result(result: Mapping[str, Any]) -> None:
    """Prints parity, every cell, the limits, and where it was measured."""
    if "parity" in result:
        for dtype in result["parity"]["dtypes"]:
            print("\n".join(_parity(result["parity"], dtype)))
        print(_EQUAL)
    if "cells" in result:
        _print_times(result)
    gpus = ", ".join(gpu["name"] for gpu in result["gpus"]) or "no GPU"
    print(f"`{result['command']}`\n")
    print(
        f"{_pair(result)}. {gpus}; {result['hardware']['cpu']}, "
        f"{result['hardware']['cores']} cores; commit {commit_text(result)}."
    )


def _print_times(result: Mapping[str, Any]) -> None:
    for cell in result["cells"]:
        print("\n".join(_cell(cell)))
    print(_MEANING)
    if result["limits"]:
        print("\n".join(_limits(result["limits"])))


def _pair(result: Mapping[str, Any]) -> str:
    """Which model ran where; of the pair that was timed, else of the one that was compared."""
    if "cells" not in result:
        parity = result["parity"]
        model = parity["model"]
        arms = [arm for each in parity["dtypes"].values() for arm in each["arms"].values()]
        places = parity["devices"].items()
    else:
        model = result["pair"]["model"]
        arms = [arm for cell in result["cells"] for arm in cell["arms"].values()]
        places = [(worker["role"], worker["device"]) for worker in result["pair"]["workers"]]
    transports = {name for arm in arms for name in arm["transports"]}
    return (
        f"Model {model}; "
        + ", ".join(f"{role} on {device}" for role, device in places)
        + f"; KV over {', '.join(sorted(transports))}"
    )


def _cell(cell: Mapping[str, Any]) -> Iterable[str]:
    yield (
        f"{cell['prompt_tokens']:,} prompt tokens, {cell['new_tokens']} new, {cell['at_once']} at "
        "once; medians, in brackets the smallest and the largest:\n"
    )
    heads = (
        "arm", "first token, ms", "of full", "engine's own, ms", "added, ms",
        "exposed transfer, ms", "of first token", "second token after, ms",
        "tokens/s an answer", "tokens/s in all", "KV, MiB", "requests",
    )  # fmt: skip
    yield from _table(heads, [_arm_row(name, arm) for name, arm in cell["arms"].items()])


def _arm_row(name: str, arm: Mapping[str, Any]) -> Sequence[str]:
    ratio = arm["ttft_of_full"]
    return (
        ARMS[name].title,
        _span(arm["ttft_ms"], 1),
        "-" if ratio is None else _span(ratio, 3),
        _middle(arm["engine_ttft_ms"]),
        _span(arm["added_ttft_ms"], 1),
        _span(arm["exposed_transfer_ms"], 1),
        f"{100 * arm['exposed_share']['median']:.1f} %",
        _middle(arm["second_token_ms"]),
        _span(arm["tokens_per_s"], 1),
        _middle(arm["tokens_per_s_in_all"]),
        f"{arm['kv_bytes'] / _MIB:.0f}",
        str(arm["requests"]),
    )


def _limits(limits: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield "Limits of two H200s with the 8B shape:\n"
    rows = [
        (
            limit["limit"],
            f"{limit['measured']:.3g}",
            f"{limit['at_most']:g}",
            "yes" if limit["met"] else "no",
        )
        for limit in limits
    ]
    yield from _table(("limit", "measured", "at most", "met"), rows)


def _parity(parity: Mapping[str, Any], dtype: str) -> Iterable[str]:
    found, devices = parity["dtypes"][dtype], parity["devices"]
    yield (
        f"Greedy tokens of {parity['model']} in {dtype}, prefill on {devices['prefill']} and "
        f"decode on {devices['decode']}, beside a slow pair's on the CPU in float32; level within "
        f"{found['level']:g}:\n"
    )
    rows = [
        (
            ARMS[name].title,
            ", ".join(map(str, arm["prompt_tokens"])),
            ", ".join(map(str, arm["kept_tokens"])) or "-",
            "-" if arm["kept_alike"] is None else f"{100 * arm['kept_alike']:.1f} %",
            f"{arm['steps_compared']} of {arm['steps']}",
            "yes" if arm["equal"] else "NO",
            f"{arm['drift']:.1e}",
            ", ".join(arm["transports"]),
        )
        for name, arm in found["arms"].items()
    ]
    heads = (
        "arm", "prompt tokens", "kept", "kept alike", "steps compared", "equal",
        "log-probabilities off by", "over",
    )  # fmt: skip
    yield from _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""


def _span(found: Mapping[str, float] | None, digits: int) -> str:
    if found is None:
        return "-"
    low, middle, high = (f"{found[key]:.{digits}f}" for key in ("min", "median", "max"))
    return f"{middle} ({low} to {high})"


def _middle(found: Mapping[str, float] | None) -> str:
    return "-" if found is None else f"{found['median']:.1f}"

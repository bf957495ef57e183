"""`tandem bench prefill|decode`: runs a micro-benchmark and prints its table."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.machine import commit_text
from loadtest.micro.decode import bench_decode
from loadtest.micro.prefill import bench_prefill
from shared.errors import ConfigError
from shared.types.page_policies import PagePolicyName

_MIB = 1024 * 1024


def run_prefill(
    *, model: str, tokens: int, keep: list[float], lp: int | None, repeats: int, as_json: bool
) -> None:
    """Runs the prefill benchmark and prints it.

    Raises:
        TandemError: a size does not fit, or our logits are not transformers'.
    """
    result = bench_prefill(
        model=model,
        tokens=tokens,
        keep=keep,
        lp=lp,
        repeats=repeats,
        progress=progress_to(as_json=as_json),
    )
    if as_json:
        print(json.dumps(result))
        return
    table = Table("arm", "seconds", "of transformers", "of our full", "kept", "KV MiB")
    for name, arm in result["arms"].items():
        table.add_row(
            name,
            f"{arm['seconds']['median']:.3f}",
            _ratio(result["ratio_to_transformers"], name),
            _ratio(result["ratio_to_full"], name),
            str(arm.get("kept_tokens", "-")),
            f"{arm['kv_bytes'] / _MIB:.1f}" if "kv_bytes" in arm else "-",
        )
    _print(table, result)


def run_decode(
    *,
    model: str,
    context: int,
    new_tokens: int,
    page_budget: int,
    policy: PagePolicyName,
    repeats: int,
    as_json: bool,
) -> None:
    """Runs the decode benchmark and prints it.

    Raises:
        TandemError: a size does not fit, or our tokens are not transformers'.
    """
    result = bench_decode(
        model=model,
        context=context,
        new_tokens=new_tokens,
        page_budget=page_budget,
        policy=policy,
        repeats=repeats,
        progress=progress_to(as_json=as_json),
    )
    if as_json:
        print(json.dumps(result))
        return
    table = Table("arm", "tokens/s", "times transformers", "attended a step")
    for name, arm in result["arms"].items():
        attended = result["attended"].get(name)
        table.add_row(
            name,
            f"{arm['tokens_per_s']['median']:.1f}",
            _ratio(result["speedup"], name),
            f"{attended:,.0f}" if attended is not None else "-",
        )
    _print(table, result)


def parse_count(flag: str, text: str) -> int:
    """A whole number above 0.

    Raises:
        ConfigError: it is none.
    """
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} cannot be {text!r}: write a whole number of at least 1")
    return int(text)


def _ratio(ratios: Mapping[str, Mapping[str, float]], name: str) -> str:
    ratio = ratios.get(name)
    return f"{ratio['median']:.3f} ({ratio['min']:.3f} to {ratio['max']:.3f})" if ratio else "-"


def progress_to(*, as_json: bool) -> Callable[[str], None]:
    """Where a benchmark tells what it does: standard error, unless nobody would read it there."""
    quiet = as_json and not sys.stderr.isatty()
    return (lambda _: None) if quiet else lambda text: print(text, file=sys.stderr, flush=True)


def _print(table: Table, result: Mapping[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    console.print(table)
    hardware = result["hardware"]
    console.print(
        f"{result['command']}\n{hardware['cpu']}, {hardware['cores']} cores, {result['threads']} "
        f"threads, load {hardware['load_average'][0]:.1f}; torch {result['torch']}, transformers "
        f"{result['transformers']}; commit {commit_text(result)}"
    )

"""Building blocks of the reports: one HTML file with its figures inside, tables from text rows."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0 } th { text-align: left }
th, td { padding: 2px 10px; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums }
img { max-width: 100% } figcaption, .small { color: #555; font-size: 13px } code { font-size: 12px }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """The whole page: a heading and what follows it."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
        + "</body></html>\n"
    )


def bullets(lines: Sequence[str]) -> str:
    """A list of sentences, or nothing without any."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in lines)
    return f"<ul>{items}</ul>" if items else ""


def figure(name: str, png: bytes, *, caption: str, origin: str) -> str:
    """An image inside the page.

    Args:
        name: what it is called, for those who cannot see it.
        png: the image.
        caption: what it shows; plain text.
        origin: where its figures come from, as `origin_of` writes it.
    """
    image = base64.b64encode(png).decode("ascii")
    return (
        f"<figure><img alt='{html.escape(name)}' src='data:image/png;base64,{image}'>"
        f"<figcaption>{html.escape(caption)} {origin}</figcaption></figure>"
    )


def section(title: str, rows: Sequence[Mapping[str, str]], origin: str) -> str:
    """A table whose columns are the first row's keys, or nothing without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in row.values()) + "</tr>"
        for row in rows
    ]
    return (
        f"<h2>{html.escape(title)}</h2><table><tr>{head}</tr>{''.join(lines)}</table>"
        f"<p class='small'>{origin}</p>"
    )


def origin_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """Command, hardware and commit of every run, as each figure states them; HTML."""
    parts = [
        f"<code>{html.escape(run['command'])}</code> on {html.escape(run['hardware'])}, "
        f"{html.escape(run['dtype'])}, commit {html.escape(run['commit'][:12] or 'unknown')}"
        for run in runs
    ]
    return "; ".join(dict.fromkeys(parts))


def share_text(share: Mapping[str, Any] | None) -> str:
    """A share with its counts: `98% (49/50)`."""
    if share is None or share["share"] is None:
        return "-"
    return f"{share['share']:.0%} ({share['right']:.0f}/{share['of']})"


def percent(value: float | None) -> str:
    """One decimal, `-` for what is not known."""
    return "-" if value is None else f"{value:.1%}"


def number(value: float | None, *, digits: int = 3) -> str:
    """A fixed number of decimals, `-` for what is not known."""
    return "-" if value is None else f"{value:.{digits}f}"

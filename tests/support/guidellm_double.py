"""A program that takes guidellm's settings and data set and leaves a report in guidellm's form.

As guidellm does, it leaves out the request that would finish last.

It is run as a program of its own, by the Python that runs the tests.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx

VERSION = "0.0.double"


def install(folder: Path, *, delay_s: float = 0.0, fails: bool = False) -> Path:
    """Writes the program; `delay_s` is added to every time to first token that it reports."""
    root = Path(__file__).resolve().parents[2]
    program = folder / "guidellm"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        "from tests.support.guidellm_double import main\n"
        f"sys.exit(main(delay_s={delay_s}, fails={fails}))\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return program


def main(*, delay_s: float, fails: bool) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["run"])
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--disable-console-interactive", action="store_true")
    spec = json.loads(parser.parse_args().config.read_text())["spec"]
    if fails:
        print("the double was told to fail")
        return 1
    rows = [json.loads(line) for line in Path(spec["data"][0]["path"]).read_text().splitlines()]
    done = asyncio.run(_replay(rows, spec["backend"], delay_s=delay_s))
    report = {
        "metadata": {"guidellm_version": VERSION},
        "benchmarks": [{"requests": {"successful": done, "errored": [], "incomplete": []}}],
    }
    Path(spec["outputs"][0]["path"]).write_text(json.dumps(report))
    return 0


async def _replay(
    rows: list[dict[str, Any]], backend: dict[str, Any], *, delay_s: float
) -> list[dict[str, Any]]:
    began = time.perf_counter()
    async with httpx.AsyncClient(base_url=backend["target"], timeout=60.0) as http:
        return await asyncio.gather(
            *(_ask(http, row, backend, began=began, delay_s=delay_s) for row in rows[:-1])
        )


async def _ask(
    http: httpx.AsyncClient,
    row: dict[str, Any],
    backend: dict[str, Any],
    *,
    began: float,
    delay_s: float,
) -> dict[str, Any]:
    due = began + row["relative_timestamp"]
    await asyncio.sleep(due - time.perf_counter())
    body = {
        "model": backend["model"],
        "messages": row["messages"],
        "max_completion_tokens": row["output_tokens_count"],
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **backend["extras"]["body"],
    }
    first, usage = None, None
    sent = time.perf_counter()
    async with http.stream("POST", backend["request_format"], json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            if first is None and any(c["delta"].get("content") for c in chunk["choices"]):
                first = time.perf_counter()
    assert first is not None, "an answer without text"
    assert usage is not None, "an answer without usage"
    return {
        "request_start_time": sent,
        "time_to_first_token_ms": 1000 * (first - sent + delay_s),
        "request_dispatch_delay": sent - due,
        "prompt_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
    }

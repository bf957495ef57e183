"""`tandem demo`: the pair on free ports, one question over a long document, both ways."""

import asyncio
import dataclasses
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from deploy.chat import open_client
from deploy.cluster import Cluster, Endpoints
from deploy.config import FREE_PORTS
from deploy.demo_document import QUESTION, demo_prompt, document_name
from deploy.local import log_sink, phase_printer, run_cluster
from deploy.rest_client import Answer, served_models, stream_chat
from shared.errors import InternalError, TandemError
from shared.model.catalog import resolve
from shared.tokenizer.tokenizer import Tokenizer

_INTERRUPTED = 130
_MODES = {"both": "both methods", "full": "neither"}
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What the demo asks."""

    model: str
    """Catalog name, folder or GGUF file."""
    max_tokens: int
    """Longest answer, in tokens."""
    keep_running: bool
    """Leave the servers up after the comparison."""
    document_tokens: int
    """Length of the document, in tokens."""
    cache_dir: Path | None
    """Model cache."""


def run_demo(settings: DemoSettings) -> int:
    """Runs the comparison and returns the exit code.

    Raises:
        TandemError: something did not start, failed, or answered nothing.
    """
    folder = resolve(settings.model, settings.cache_dir)
    prompt = demo_prompt(Tokenizer.from_folder(folder), document_tokens=settings.document_tokens)
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as logs:
        config = dataclasses.replace(
            FREE_PORTS, model=settings.model, cache_dir=settings.cache_dir, log_dir=Path(logs)
        )

        async def body(cluster: Cluster, endpoints: Endpoints) -> int:
            return await _compare(cluster, endpoints, prompt=prompt, settings=settings)

        try:
            with log_sink(Path(logs)) as on_line:
                run = run_cluster(
                    config,
                    body=body,
                    on_line=on_line,
                    on_phase=phase_printer(),
                    interrupted=_INTERRUPTED,
                )
                return asyncio.run(run)
        except TandemError:
            print_logs(Path(logs))
            raise


async def _compare(
    cluster: Cluster, endpoints: Endpoints, *, prompt: str, settings: DemoSettings
) -> int:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n[bold]document[/bold]  {document_name()}", markup=True)
    console.print(f"[bold]question[/bold]  {QUESTION}")
    client = open_client(endpoints.url)
    try:
        model = (await asyncio.to_thread(served_models, client))[0]
        answers = {}
        for mode, title in _MODES.items():
            console.print(f"\n[bold]{title}[/bold] (tandem.mode={mode})")
            body = request_body(model, prompt, mode=mode, max_tokens=settings.max_tokens)
            answers[mode] = await asyncio.to_thread(
                stream_chat, client, body, on_text=lambda text: console.out(text, end="")
            )
            console.print()
    finally:
        client.close()
    check_answers(answers)
    console.print()
    console.print(comparison(answers))
    console.print(_snippets(endpoints, model, running=settings.keep_running), markup=False)
    if settings.keep_running:
        role = await cluster.wait_death()
        raise InternalError(f"{role.spec.name} ended while the demo's servers were kept running")
    return 0


def request_body(model: str, prompt: str, *, mode: str, max_tokens: int) -> dict[str, object]:
    """A greedy chat completion in one mode."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_completion_tokens": max_tokens,
        "tandem": {"mode": mode},
    }


def check_answers(answers: dict[str, Answer]) -> None:
    """Checks that both ways answered, and that each did what it was asked for.

    Raises:
        InternalError: an answer is empty, the pruned one kept all, or the full one did not.
    """
    for mode, answer in answers.items():
        if not answer.text.strip():
            raise InternalError(f"mode {mode} gave an empty answer; see the logs above")
    pruned = {
        mode: _number(a, "kept_tokens") < _number(a, "prompt_tokens") for mode, a in answers.items()
    }
    if not pruned["both"] or pruned["full"]:
        raise InternalError(f"kept tokens do not fit the modes: {pruned}; see the logs above")


def comparison(answers: dict[str, Answer]) -> Table:
    """The figures of both ways side by side."""
    table = Table("", *(_MODES[mode] for mode in answers))
    rows: tuple[tuple[str, Callable[[Answer], str]], ...] = (
        ("time to first token, ms", lambda a: f"{a.ttft_s * 1000:.0f}"),
        ("tokens/s after it", lambda a: f"{_number(a, 'tokens_per_s'):.1f}"),
        ("prompt tokens", lambda a: f"{_number(a, 'prompt_tokens'):.0f}"),
        ("kept tokens", lambda a: f"{_number(a, 'kept_tokens'):.0f}"),
        ("KV moved, MiB", lambda a: f"{_number(a, 'kv_bytes') / _MIB:.1f}"),
        ("answer tokens", lambda a: str(a.usage.get("completion_tokens", 0))),
        ("attended token-layers", lambda a: f"{_number(a, 'attended'):,.0f}"),
        ("dense token-layers", lambda a: f"{_number(a, 'dense'):,.0f}"),
        ("transport", lambda a: str(a.report.get("transport"))),
    )
    for name, text in rows:
        table.add_row(name, *(text(answer) for answer in answers.values()))
    return table


def print_logs(folder: Path) -> None:
    """Prints the last lines of every role's log to standard error."""
    for path in sorted(folder.glob("*.log")):
        for line in path.read_text(encoding="utf-8").splitlines()[-20:]:
            print(f"{path.stem:<10} {line}", file=sys.stderr)


def _number(answer: Answer, name: str) -> float:
    value = answer.report.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _snippets(endpoints: Endpoints, model: str, *, running: bool) -> str:
    url = endpoints.url if running else "http://127.0.0.1:8000"
    first = "The servers stay up until Ctrl-C:" if running else "To go on: `tandem up`, then"
    messages = '[{"role": "user", "content": "Why is the sky blue?"}]'
    return f"""
{first}

  curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": {messages}}}'

or in Python

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="unused")
  answer = client.chat.completions.create(model="{model}", messages={messages})
  print(answer.choices[0].message.content)
"""

"""`tandem chat`: one message or a dialogue with a running gateway."""

import os
import ssl
from dataclasses import dataclass

import httpx
from rich.console import Console

from deploy.rest_client import Answer, served_models, stream_chat
from shared.errors import TandemError, UnavailableError

API_KEY_VARIABLE = "TANDEM_API_KEY"
_TIMEOUT_S = 600.0
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What each turn is sent with."""

    url: str
    """Base URL of the gateway."""
    model: str
    """Served name; empty takes the first."""
    system: str
    """System message; empty sends none."""
    max_tokens: int
    """Longest answer, in tokens."""
    temperature: float
    """0 is greedy."""
    mode: str
    """Which methods run."""


def run_chat(message: str | None, *, settings: ChatSettings) -> int:
    """Answers `message`, or reads messages until end of input; returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    with open_client(settings.url) as client:
        dialogue = _Dialogue(client, settings, console)
        if message is not None:
            dialogue.turn(message)
            return 0
        return _converse(dialogue, console)


def open_client(url: str) -> httpx.Client:
    """A client of the gateway at `url`; proxies of the environment are not used.

    The URL may be a plain `host:port`, or end in the `/v1` that OpenAI's clients want. Takes the
    key from TANDEM_API_KEY, and authorities from SSL_CERT_FILE or the system.
    """
    timeout = httpx.Timeout(_TIMEOUT_S, connect=_CONNECT_S)
    key = os.environ.get(API_KEY_VARIABLE)
    return httpx.Client(
        base_url=_base(url),
        timeout=timeout,
        trust_env=False,
        headers={"authorization": f"Bearer {key}"} if key else {},
        verify=ssl.create_default_context(),
    )


def _base(url: str) -> str:
    bare = url.rstrip("/").removesuffix("/v1")
    return bare if "://" in bare else f"http://{bare}"


class _Dialogue:
    """Turns so far, and the next one."""

    def __init__(self, client: httpx.Client, settings: ChatSettings, console: Console) -> None:
        self._client = client
        self._settings = settings
        self._console = console
        self._model = settings.model or _only_model(client)
        self._turns: list[dict[str, str]] = []
        if settings.system:
            self._turns.append({"role": "system", "content": settings.system})

    def turn(self, message: str) -> Answer:
        """Sends one message and prints the answer as it comes."""
        turns = [*self._turns, {"role": "user", "content": message}]
        answer = stream_chat(
            self._client,
            {
                "model": self._model,
                "messages": turns,
                "max_completion_tokens": self._settings.max_tokens,
                "temperature": self._settings.temperature,
                "tandem": {"mode": self._settings.mode},
            },
            on_text=lambda text: self._console.print(text, end="", markup=False),
        )
        self._console.print()
        self._console.print(f"[dim]{summary(answer)}[/dim]")
        self._turns = [*turns, {"role": "assistant", "content": answer.text}]
        return answer


def summary(answer: Answer) -> str:
    """One line of figures about an answer."""
    report = answer.report
    return (
        f"TTFT {answer.ttft_s * 1000:.0f} ms, {report.get('tokens_per_s') or 0:.1f} tokens/s, "
        f"{answer.usage.get('completion_tokens', 0)} tokens, kept {report.get('kept_tokens')} of "
        f"{report.get('prompt_tokens')} prompt tokens, {answer.finish_reason}"
    )


def _only_model(client: httpx.Client) -> str:
    names = served_models(client)
    if not names:
        raise UnavailableError(
            "the gateway serves no model yet: no worker is registered; try again shortly"
        )
    return names[0]


def _converse(dialogue: _Dialogue, console: Console) -> int:
    console.print("[dim]An empty line or Ctrl-D ends.[/dim]")
    while True:
        try:
            message = console.input("[bold]> [/bold]").strip()
        except EOFError:
            return 0
        if not message:
            return 0
        try:
            dialogue.turn(message)
        except TandemError as error:
            console.print(f"[red]error: {error.message}[/red]")

"""Debian's curl as a client: the bytes it saw, and nothing between."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.gateway_rig import strict_json

_COMMAND = ("curl", "--silent", "--show-error", "--no-buffer", "--noproxy", "*", "--max-time", "60")


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    """By lower-case names."""
    body: bytes

    def json(self) -> Any:
        """The body as a strict parser reads it."""
        return strict_json(self.body.decode("utf-8"))


async def curl(
    url: str,
    *,
    json_body: Any = None,
    headers: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
) -> Answer:
    """One request; `json_body` makes it a POST.

    Raises:
        AssertionError: curl failed; the message is its own.
    """
    arguments, given = _request(url, json_body, headers)
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        "--include",
        *options,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await process.communicate(given)
    assert process.returncode == 0, complaint.decode()
    head, _, body = out.partition(b"\r\n\r\n")
    while head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Answer(
        int(status.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, body
    )


@asynccontextmanager
async def curl_stream(url: str, *, json_body: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """A running curl whose `stdout` gives the body as it comes; it is ended at the end."""
    arguments, given = _request(url, json_body, None)
    process = await asyncio.create_subprocess_exec(
        *_COMMAND,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(given)
        await process.stdin.drain()
        process.stdin.close()
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.stdout.read()
        await process.wait()


def _request(
    url: str, json_body: Any, headers: Mapping[str, str] | None
) -> tuple[tuple[str, ...], bytes]:
    """Arguments, and the body for the standard input, where no argument limit applies."""
    assert shutil.which("curl"), "install curl (Debian: apt install curl)"
    arguments: list[str] = [url]
    for name, value in (headers or {}).items():
        arguments += ["--header", f"{name}: {value}"]
    if json_body is None:
        return tuple(arguments), b""
    arguments += ["--header", "content-type: application/json", "--data-binary", "@-"]
    return tuple(arguments), json.dumps(json_body).encode()

"""vLLM beside our benches: starts its process, asks for times, ends it, all on the same device.

It runs where vLLM can be imported, with settings of its own choosing but these: random weights, no
prefix cache, bytes of KV that leave room for us, and CUDA graphs of the batches that are timed.
"""

import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shared.errors import UnavailableError
from shared.model.config import ModelConfig

VLLM = "vllm"
"""Name of its arm."""

_GRAPH_SIZES = (1, 16)
"""Batches whose steps are CUDA graphs beside the timed one; 16 is also the shortest prompt here."""

_ENVIRONMENT = {
    # A forked engine inherits the locks of the child's threads as they happen to be, and may hang.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}
"""Lets it start, and keeps it on this machine; what is set already stays."""

_START_SECONDS = 120.0
_ANSWER_SECONDS = 120.0
_END_SECONDS = 5.0
"""Long enough for the killed to go; what nobody reaps holds no memory."""
_LOG_BYTES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """What an engine is started with."""

    config: ModelConfig
    """Shape of the model."""
    max_tokens: int
    """Longest request, answer included."""
    batches: tuple[int, ...] = ()
    """Requests that decode together, each number that will be timed."""
    kv_tokens: int
    """Tokens of all requests that hold KV at a time."""
    step_tokens: int
    """Most tokens of one step."""

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batches whose step is a CUDA graph, ascending."""
        return tuple(sorted({*_GRAPH_SIZES, *self.batches}))

    def covers(self, other: "VllmSettings") -> bool:
        """Whether an engine of these can take all that `other` is for."""
        return (
            self.config == other.config
            and {*other.batches} <= {*self.graph_sizes}
            and self.max_tokens >= other.max_tokens
            and self.kv_tokens >= other.kv_tokens
        )

    def to_json(self) -> dict[str, Any]:
        """The first line for the child."""
        token_bytes = 4 * self.config.num_layers * self.config.num_kv_heads * self.config.head_dim
        sizes = self.graph_sizes
        return {
            "config": self.config.to_dict(),
            "max_tokens": self.max_tokens,
            "max_batch": max(sizes),
            "kv_bytes": token_bytes * self.kv_tokens,
            "step_tokens": self.step_tokens,
            "graph_sizes": list(sizes),
        }


def why_no_vllm() -> str | None:
    """Why it cannot run here; None: it can be imported."""
    if importlib.util.find_spec("vllm") is None:
        return "vllm is not installed for this Python"
    return None


class VllmPeer:
    """A running engine. It starts while the caller does other things; `facts` waits for it.

    Args:
        settings: of the engine.
        command: starts the child; None is the one of this package.
    """

    def __init__(self, settings: VllmSettings, *, command: list[str] | None = None) -> None:
        self.settings = settings
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  as long as the process
        self._process = subprocess.Popen(  # noqa: S603  this Python and our own module
            command or [sys.executable, "-m", "loadtest.micro.vllm_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_ENVIRONMENT | os.environ,
            text=True,
            start_new_session=True,  # it has children of its own, which end with it
        )
        self._facts: dict[str, Any] | None = None
        self._ended: str | None = None
        self._send(settings.to_json())

    @property
    def facts(self) -> dict[str, Any]:
        """Versions and settings as it tells them, once it has started.

        Raises:
            UnavailableError: it ended instead, or took too long and was ended.
        """
        if self._facts is None:
            self._facts = self._receive(within_s=_START_SECONDS)
        return self._facts

    @property
    def ended(self) -> str | None:
        """Why it was ended before its time; None: it was not."""
        return self._ended

    def first_token(self, tokens: int, *, chunk_tokens: int) -> dict[str, Any]:
        """Time to first token of a fresh prompt; see `TimedEngine.first_token`.

        Args:
            tokens: of the prompt.
            chunk_tokens: most tokens of a step; 0: the whole prompt.
        """
        return self._ask({"do": "first_token", "tokens": tokens, "chunk_tokens": chunk_tokens})

    def between_tokens(self, *, batch: int, tokens: int, steps: int) -> dict[str, Any]:
        """Time of a step; see `TimedEngine.between_tokens`."""
        return self._ask({"do": "between_tokens", "batch": batch, "tokens": tokens, "steps": steps})

    def last_said(self) -> str:
        """The end of what it printed."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - _LOG_BYTES))
        return self._log.read().decode(errors="replace")

    def close(self) -> None:
        """Ends it, which frees the device's memory; may be called again."""
        if self._log.closed:
            return
        _end_group(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._log.close()

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        _ = self.facts  # it has started
        self._send(what)
        found = self._receive(within_s=_ANSWER_SECONDS)
        if "failed" in found:
            raise UnavailableError(f"vLLM could not time {what}: {found['failed']}")
        return found

    def _send(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None, "a pipe was asked for"
        if self._ended is not None:
            return
        with suppress(BrokenPipeError):  # why it is gone is told when its answer is read
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def _receive(self, *, within_s: float) -> dict[str, Any]:
        if self._ended is not None:
            raise UnavailableError(self._ended)
        try:
            return self._next_answer(within_s=within_s)
        except UnavailableError as error:
            # A late answer would be taken for that to another question.
            self._ended = error.message
            self.close()
            raise

    def _next_answer(self, *, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None, "a pipe was asked for"
        # One answer to each question, so nothing is left in a buffer that `select` cannot see.
        if not select.select([self._process.stdout], [], [], within_s)[0]:
            raise UnavailableError(
                f"vLLM did not answer within {within_s:g} s: the machine is too slow for it, or it "
                f"hangs. Leave it out, or see what it said last: ...{self.last_said()}"
            )
        line = self._process.stdout.readline()
        if not line:
            raise self._gone()
        found: dict[str, Any] = json.loads(line)
        return found

    def _gone(self) -> UnavailableError:
        return UnavailableError(
            f"vLLM's process ended with {self._process.wait()}; it cannot run here with these "
            "settings, or memory is short. Leave it out, or see what it said last: "
            f"...{self.last_said()}"
        )


def _end_group(leader: subprocess.Popen[str]) -> None:
    """Ends a process and what it started, and waits until all of it is gone."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(leader.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        leader.poll()  # a zombie is a member, too
        time.sleep(0.05)
    leader.wait()

"""vLLM in a process of its own, which `vllm_peer` starts and tells what to time, by JSON lines.

The first line on standard input holds the settings; the answer says what runs. Every line after it
is one measurement, `{"do": "first_token", ...}` or `{"do": "between_tokens", ...}`, answered by one
line. Times are taken in this process around vLLM's own loop (`add_request`, `step`), whose engine
is a further process, as `LLM` starts it. Prompts are fresh random tokens; nothing is cached.
It leads a process group, which ends when the input does.
"""

import gc
import json
import os
import queue
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

_ROOM = 10
"""Token ids below are special in the models at hand."""


class TimedEngine:
    """One engine with random weights.

    Args:
        settings: `config` (as in config.json), `max_tokens` and `max_batch` of requests,
            `kv_bytes`, `step_tokens` (most tokens of one step), `graph_sizes` (batches whose step
            is a CUDA graph).
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415  takes seconds

        self._config = settings["config"]
        self._random = random.Random(time.time_ns())
        self._requests = 0
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="vllm_peer_") as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(self._config), encoding="utf-8")
            self._llm: Any = LLM(
                model=folder,
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype="bfloat16",
                enable_prefix_caching=False,
                max_model_len=settings["max_tokens"],
                max_num_seqs=settings["max_batch"],
                max_num_batched_tokens=settings["step_tokens"],
                # Exact bytes instead of a share of the device, which another process uses as well;
                # the share is then only checked to be free at the start.
                kv_cache_memory_bytes=settings["kv_bytes"],
                gpu_memory_utilization=0.1,
                compilation_config={"cudagraph_capture_sizes": settings["graph_sizes"]},
                worker_extension_cls="loadtest.micro.vllm_chunks.ChunkSwitch",
            )
        self._start_seconds = time.perf_counter() - started

    def facts(self) -> dict[str, Any]:
        """What runs, JSON-ready."""
        import vllm  # noqa: PLC0415  takes seconds

        given = self._llm.llm_engine.vllm_config
        return {
            "vllm": vllm.__version__,
            "torch": metadata.version("torch"),
            "start_seconds": self._start_seconds,
            "weights": "random, uniform in +-1e-3 (load_format dummy)",
            "async_scheduling": given.scheduler_config.async_scheduling,
            "max_num_batched_tokens": given.scheduler_config.max_num_batched_tokens,
            "max_num_seqs": given.scheduler_config.max_num_seqs,
            "max_model_len": given.model_config.max_model_len,
            "kv_cache_memory_bytes": given.cache_config.kv_cache_memory_bytes,
            "block_size": given.cache_config.block_size,
            "enable_prefix_caching": given.cache_config.enable_prefix_caching,
            "cudagraph_mode": str(given.compilation_config.cudagraph_mode),
            "cudagraph_capture_sizes": list(given.compilation_config.cudagraph_capture_sizes),
            "attention": str(given.attention_config),
        }

    def first_token(self, *, tokens: int, chunk_tokens: int) -> dict[str, Any]:
        """Seconds from handing in a prompt to its first token, and those of handing it in."""
        held = self._set_chunk(chunk_tokens)
        prompt = self._prompt(tokens)
        started, submitted, events = self._drive([prompt], answer_tokens=1)
        return {
            "seconds": events[0][0] - started,
            "submit_seconds": submitted - started,
            "chunk_tokens": held,
        }

    def between_tokens(self, *, batch: int, tokens: int, steps: int) -> dict[str, Any]:
        """Milliseconds between tokens while `batch` requests of about `tokens` tokens decode.

        Prompts are shorter by half of what they grow until the middle of the window.
        """
        self._set_chunk(0)
        given = self._llm.llm_engine.vllm_config.scheduler_config
        # Requests that are read first answer while the others are being read.
        fill = -(-batch * tokens // given.max_num_batched_tokens) if batch > 1 else 0
        prompt_tokens = tokens - fill // 2 - steps // 2
        prompts = [self._prompt(prompt_tokens) for _ in range(batch)]
        spare = fill + fill // 4 + 16
        started, _, events = self._drive(prompts, answer_tokens=steps + spare)
        found = window_of(events, batch=batch, steps=steps)
        return {
            "batch": batch,
            "prompt_tokens": prompt_tokens,
            "fill_seconds": found.pop("begins") - started,
            "mean_context": prompt_tokens + found.pop("tokens_before") / batch + steps / 2,
            **found,
        }

    def _set_chunk(self, tokens: int) -> int:
        (held,) = self._llm.collective_rpc("tandem_set_chunk", args=(tokens,))
        return int(held)

    def _prompt(self, tokens: int) -> list[int]:
        return [self._random.randrange(_ROOM, self._config["vocab_size"]) for _ in range(tokens)]

    def _drive(
        self, prompts: Sequence[list[int]], *, answer_tokens: int
    ) -> tuple[float, float, list[tuple[float, int]]]:
        """Runs requests: when it began, when all were handed in, and when how many tokens came."""
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415

        engine = self._llm.llm_engine
        wanted = SamplingParams(
            temperature=0.0,
            max_tokens=answer_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        events: list[tuple[float, int]] = []
        gc.collect()
        gc.disable()  # a collection would fall into somebody's time
        started = time.perf_counter()
        for prompt in prompts:
            self._requests += 1
            engine.add_request(str(self._requests), {"prompt_token_ids": prompt}, wanted)
        submitted = time.perf_counter()
        while engine.has_unfinished_requests():
            came = sum(len(output.outputs[0].token_ids) for output in engine.step())
            if came:
                events.append((time.perf_counter(), came))
        gc.enable()
        return started, submitted, events


def window_of(events: Sequence[tuple[float, int]], *, batch: int, steps: int) -> dict[str, Any]:
    """The first `steps` steps in which every request of a batch answers.

    Args:
        events: moments and how many tokens came.
        batch: requests, each of which gives one token a step.
        steps: gaps to look at.

    Returns:
        JSON: `step_ms` (median, min, max of the gaps), `mean_ms`, `steps`, `begins` (the moment of
        the window's first token) and `tokens_before` (tokens of all requests until then).

    Raises:
        ValueError: there is no such window: too few tokens were asked for.
    """
    before = 0
    for first, (begins, came) in enumerate(events):
        before += came
        window = events[first : first + steps + 1]
        if len(window) == steps + 1 and all(n == batch for _, n in window):
            moments = [moment for moment, _ in window]
            gaps = [(b - a) * 1e3 for a, b in pairwise(moments)]
            return {
                "step_ms": {
                    "median": statistics.median(gaps),
                    "min": min(gaps),
                    "max": max(gaps),
                },
                "mean_ms": (moments[-1] - moments[0]) * 1e3 / steps,
                "steps": steps,
                "begins": begins,
                "tokens_before": before,
            }
    raise ValueError(f"{batch} requests never answered together for {steps} steps: {events[-5:]}")


def serve(
    lines: Callable[[], str], answer: Callable[[dict[str, Any]], None], engine: TimedEngine
) -> None:
    """Answers measurements for as long as the process lives."""
    answer(engine.facts())
    commands: dict[str, Callable[..., dict[str, Any]]] = {
        "first_token": engine.first_token,
        "between_tokens": engine.between_tokens,
    }
    while True:
        wanted = json.loads(lines())
        try:
            answer(commands[wanted.pop("do")](**wanted))
        except ValueError as error:
            answer({"failed": str(error)})


def main() -> None:
    """The process; see the module."""
    # vLLM and its libraries print; only answers may reach the parent.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(found: dict[str, Any]) -> None:
        out.write(json.dumps(found) + "\n")
        out.flush()

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    settings = json.loads(lines.get())
    serve(lines.get, answer, TimedEngine(settings))


def _read_lines(lines: queue.SimpleQueue[str]) -> None:
    """Hands on what the parent says; once it says nothing more, everything here ends at once.

    Its engine is a process of its own that would keep the device's memory, and may be busy.
    """
    for line in sys.stdin:
        lines.put(line)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()

"""The least that turns gRPC streams of tokens into server-sent events: the gateway's yardstick.

The same libraries as the gateway, the same two calls to the workers, the same shape of chunks with
real text in them. It has no limits, queue, keys, retries, checks, metrics or traces, and it does
not notice a client that leaves.
"""

import argparse
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import orjson
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from loadtest.gateway_cost.child import say_ready, until_told
from protos.tandem.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2, prefill_pb2_grpc
from shared.telemetry.http_server import HttpServer
from shared.tokenizer.folder import TOKENIZER_FILE

PATH = "/v1/chat/completions"


class Relay:
    """One pair of workers as a chat endpoint.

    Args:
        tokenizer: turns prompts into ids and ids into text.
        prefill: channel to the prefill worker.
        decode: channel to the decode worker.
        decode_address: of the decode worker, for the prefill worker.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prefill: grpc.aio.Channel,
        decode: grpc.aio.Channel,
        decode_address: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._prefill = prefill_pb2_grpc.PrefillServiceStub(prefill)
        self._decode = decode_pb2_grpc.DecodeServiceStub(decode)
        self._target = prefill_pb2.DecodeTarget(worker_id="decode", address=decode_address)

    async def chat(self, request: Request) -> StreamingResponse:
        """A streamed chat completion."""
        body = orjson.loads(await request.body())
        return StreamingResponse(self._frames(body), media_type="text/event-stream")

    async def _frames(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        chunk: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk",
        }
        chunk |= {"created": 0, "model": body["model"]}

        def frame(delta: dict[str, str], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return b"data: " + orjson.dumps({**chunk, "choices": [choice]}) + b"\n\n"

        yield frame({"role": "assistant", "content": ""})
        texts, sent = DecodeStream(skip_special_tokens=True), 0
        phases: dict[str, float] = {}
        all_ids: list[int] = []
        async for token_ids, told in self._tokens(body):
            phases |= told
            all_ids += token_ids
            pieces = [texts.step(self._tokenizer, token_id) for token_id in token_ids]
            text = "".join(piece for piece in pieces if piece)
            if text:
                sent += len(text)
                yield frame({"content": text})
        # What the stream of texts held back: half a character at the end.
        if rest := self._tokenizer.decode(all_ids)[sent:]:
            yield frame({"content": rest})
        yield frame({}, "length")
        usage = {"completion_tokens": len(all_ids)}
        last = {**chunk, "choices": [], "usage": usage, "tandem": {"phases_ms": phases}}
        yield b"data: " + orjson.dumps(last) + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def _tokens(
        self, body: dict[str, Any]
    ) -> AsyncIterator[tuple[list[int], dict[str, float]]]:
        prompt = "\n".join(message["content"] for message in body["messages"])
        handoff = common_pb2.HandoffKey(handoff_id=uuid.uuid4().hex, attempt=1)
        sampling = common_pb2.SamplingParams(seed=body["seed"])
        stop = common_pb2.StopConditions(max_tokens=body["max_tokens"])
        prefill = prefill_pb2.PrefillRequest(
            handoff=handoff,
            token_ids=self._tokenizer.encode(prompt).ids,
            sampling=sampling,
            stop=stop,
            targets=[self._target],
        )
        async for event in self._prefill.Prefill(prefill):
            if event.HasField("first_tokens"):
                yield [token.token_id for token in event.first_tokens.tokens], {}
            elif event.HasField("sealed"):
                yield [], {phase.phase: phase.seconds * 1000 for phase in event.sealed.phases}
        decode = decode_pb2.DecodeRequest(handoff=handoff, sampling=sampling, stop=stop)
        async for answer in self._decode.Decode(decode):
            if answer.HasField("tokens"):
                yield [token.token_id for token in answer.tokens.tokens], {}


async def _serve(folder: Path, prefill: str, decode: str) -> None:
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    async with (
        grpc.aio.insecure_channel(prefill) as to_prefill,
        grpc.aio.insecure_channel(decode) as to_decode,
    ):
        relay = Relay(tokenizer, prefill=to_prefill, decode=to_decode, decode_address=decode)
        app = Starlette(routes=[Route(PATH, relay.chat, methods=["POST"])])
        server = HttpServer(app, host="127.0.0.1", port=0, grace_s=1.0)
        await server.start()
        say_ready(rest=server.address)
        await until_told()
        await server.stop()


def main() -> None:
    """`python -m loadtest.gateway_cost.relay --model-dir ... --prefill ... --decode ...`."""
    flags = argparse.ArgumentParser(description="A minimal relay from gRPC to SSE.")
    flags.add_argument("--model-dir", type=Path, required=True)
    flags.add_argument("--prefill", required=True)
    flags.add_argument("--decode", required=True)
    given = flags.parse_args()
    uvloop.run(_serve(given.model_dir, given.prefill, given.decode))


if __name__ == "__main__":
    main()

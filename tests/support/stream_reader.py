"""What openai-python makes of the bytes of a stream, whoever sent them."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import openai
from openai.types.chat import ChatCompletionChunk, ParsedChatCompletion


@contextmanager
def _client_of(raw: bytes) -> Iterator[openai.OpenAI]:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=raw, headers={"content-type": "text/event-stream"})

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        openai.OpenAI(base_url="http://test/v1", api_key="none", http_client=http) as client,
    ):
        yield client


def chunks_of(raw: bytes) -> list[ChatCompletionChunk]:
    """The chunks, as `create(stream=True)` hands them out."""
    with _client_of(raw) as client:
        stream = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        return list(stream)


def final_of(raw: bytes) -> ParsedChatCompletion[None]:
    """The answer that the `.stream()` helper puts together."""
    with (
        _client_of(raw) as client,
        client.chat.completions.stream(
            model="m", messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        return stream.get_final_completion()

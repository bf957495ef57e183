"""What a real OTLP collector receives of a gateway: server metrics and spans of the conventions."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.rpc.channel_pool import ChannelPool
from shared.telemetry import gen_ai
from tests.support.gateway_rig import Rig, running_rig
from tests.support.otlp_collector import Collector, attributes, points, running_collector
from tests.support.tiny_tokenizer import write_tokenizer_folder

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "Xylophones are my secret."
REFUSED = {"temperature": 9}


@dataclass
class Collected:
    """What a gateway told of three answers and a refusal, and what it answered."""

    collector: Collector
    model: str
    completions: list[dict[str, Any]]


async def generate(rig: Rig) -> None:
    """One answer over gRPC."""
    pool = ChannelPool()
    stub = inference_pb2_grpc.InferenceServiceStub(pool.get(rig.gateway.grpc_address))
    request = inference_pb2.GenerateRequest(
        text=SECRET, stop=common_pb2.StopConditions(max_tokens=1), ignore_eos=True
    )
    async for _ in stub.Generate(request):
        pass
    await pool.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collected(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Collected]:
    folder = write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))
    async with running_collector() as collector:
        async with running_rig(folder, otlp_endpoint=collector.endpoint) as rig:
            done = await rig.complete(prompt=SECRET, max_tokens=3)
            cut = await rig.complete(prompt=SECRET, max_tokens=2, n=2)
            refused = await rig.chat(**REFUSED)
            assert refused.status_code == 400
            await generate(rig)
            assert not collector.metrics  # nothing is sent on the way of a request
        # The gateway is closed, and has sent what it had.
        yield Collected(collector, done.json()["model"], [done.json(), cut.json()])


async def test_three_histograms_with_the_buckets_of_the_conventions(collected: Collected) -> None:
    sent = collected.collector.histograms()
    assert collected.collector.service() == "tandem-gateway"
    assert set(sent) == {
        "gen_ai.server.request.duration",
        "gen_ai.server.time_to_first_token",
        "gen_ai.server.time_per_output_token",
    }
    for spec in (
        gen_ai.REQUEST_DURATION,
        gen_ai.TIME_TO_FIRST_TOKEN,
        gen_ai.TIME_PER_OUTPUT_TOKEN,
    ):
        assert sent[spec.name].unit == "s"
        assert all(
            tuple(point.explicit_bounds) == spec.bounds for _, point in points(sent[spec.name])
        )


async def test_requests_are_counted_by_operation_model_and_error(collected: Collected) -> None:
    sent = collected.collector.histograms()

    def counts(name: str) -> dict[tuple[str, str], int]:
        found = points(sent[name])
        for told, point in found:
            assert told["gen_ai.provider.name"] == "tandem"
            assert told["gen_ai.request.model"] == collected.model
            assert set(told) <= {
                *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
                *("gen_ai.response.model", "error.type"),
            }
            assert point.sum > 0
        return {
            (told["gen_ai.operation.name"], told.get("error.type", "")): point.count
            for told, point in found
        }

    assert counts("gen_ai.server.request.duration") == {
        ("text_completion", ""): 2,
        ("chat", "400"): 1,
        ("generate_content", ""): 1,
    }
    assert counts("gen_ai.server.time_to_first_token") == {
        ("text_completion", ""): 2,
        ("generate_content", ""): 1,
    }
    assert counts("gen_ai.server.time_per_output_token") == {("text_completion", ""): 2}


async def test_spans_say_tokens_models_and_why_answers_ended(collected: Collected) -> None:
    spans = [s for s in collected.collector.spans() if s.name == "POST /v1/completions"]
    told = sorted(
        (attributes(span.attributes) for span in spans),
        key=lambda found: len(found["gen_ai.response.finish_reasons"]),
    )
    assert len(told) == 2
    for found, answer in zip(told, collected.completions, strict=True):
        assert found["gen_ai.operation.name"] == "text_completion"
        assert found["gen_ai.provider.name"] == "tandem"
        assert found["gen_ai.request.model"] == found["gen_ai.response.model"] == answer["model"]
        assert found["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
        assert found["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"]
        assert found["gen_ai.response.finish_reasons"] == [
            choice["finish_reason"] for choice in answer["choices"]
        ]
    assert told[1]["gen_ai.response.finish_reasons"] == ["length", "length"]


async def test_what_was_said_is_never_told(collected: Collected) -> None:
    sent = repr(collected.collector.metrics) + repr(collected.collector.traces)
    assert "ylophone" not in sent
    for answer in collected.completions:
        for choice in answer["choices"]:
            assert choice["text"].strip() not in sent

"""One trace of a request over the four hops, with real workers and an exporter in memory."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.telemetry.otel import OtelSource
from shared.telemetry.spans import SpanOwner
from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.gateway_rig import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
SECRET = "Xylophones are my secret. "
TOKENS = 70
REST = "POST /v1/completions"
PREFILL = "tandem.v1.PrefillService/Prefill"
DECODE = "tandem.v1.DecodeService/Decode"
COMMIT = "tandem.v1.DecodeService/Commit"
RESERVE = "tandem.v1.DecodeService/Reserve"


@dataclass
class Recorded:
    """A stack and what its roles exported."""

    stack: Stack
    exporter: InMemorySpanExporter
    sources: list[OtelSource]

    def spans(self, trace_id: int) -> list[ReadableSpan]:
        for source in self.sources:
            source.flush()
        return [s for s in self.exporter.get_finished_spans() if s.context.trace_id == trace_id]

    async def complete_trace(self, trace_id: int) -> list[ReadableSpan]:
        """Waits for spans of calls that end after the answer."""

        async def ended() -> bool:
            spans = self.spans(trace_id)
            names = [span.name for span in spans]
            known = {span.context.span_id for span in spans} | {int(SPAN, 16)}
            whole = all(span.parent is None or span.parent.span_id in known for span in spans)
            return whole and names.count(DECODE) == 2 and names.count(PREFILL) == 2

        await until(ended)
        return self.spans(trace_id)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def recorded(
    tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Recorded]:
    exporter, sources = InMemorySpanExporter(), []

    def source_of(role: str) -> OtelSource:
        owner = SpanOwner(role=role, worker_id=f"{role}-1", version="test")
        sources.append(OtelSource(exporter, owner=owner))
        return sources[-1]

    profile = write_profile(tmp_path_factory.mktemp("profile"))
    async with running_stack(tiny_model_dir, profile, spans=source_of) as stack:
        yield Recorded(stack, exporter, sources)


async def post(recorded: Recorded, **headers: str) -> httpx.Response:
    body = {"prompt": SECRET * 6, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return await recorded.stack.http.post("/v1/completions", json=body, headers=headers)


def one(spans: Sequence[ReadableSpan], name: str, kind: SpanKind | None = None) -> ReadableSpan:
    (found,) = [s for s in spans if s.name == name and (kind is None or s.kind is kind)]
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def role(span: ReadableSpan) -> Any:
    return span.resource.attributes["service.name"]


async def test_one_trace_with_the_right_parents(recorded: Recorded) -> None:
    response = await post(recorded, traceparent=f"00-{TRACE}-{SPAN}-01")
    assert response.status_code == 200
    spans = await recorded.complete_trace(int(TRACE, 16))
    root = one(spans, REST)
    assert root.parent is not None
    assert root.parent.span_id == int(SPAN, 16)

    def parent_of(span: ReadableSpan) -> ReadableSpan:
        assert span.parent is not None
        (found,) = [s for s in spans if s.context.span_id == span.parent.span_id]
        return found

    for name in ("gateway.prepare", "gateway.queue"):
        assert parent_of(one(spans, name)) is root
    for name in (PREFILL, DECODE):
        call, served = one(spans, name, SpanKind.CLIENT), one(spans, name, SpanKind.SERVER)
        assert parent_of(call) is root
        assert parent_of(served) is call
    prefill, decode = one(spans, PREFILL, SpanKind.SERVER), one(spans, DECODE, SpanKind.SERVER)
    for name in ("prefill.queue", "prefill.compute", "transfer"):
        assert parent_of(one(spans, name)) is prefill
    for name in ("decode.queue", "decode.first_step", "decode.steps"):
        assert parent_of(one(spans, name)) is decode
    for name in (RESERVE, COMMIT):
        call, served = one(spans, name, SpanKind.CLIENT), one(spans, name, SpanKind.SERVER)
        assert parent_of(call) is prefill
        assert parent_of(served) is call
        assert (role(call), role(served)) == ("tandem-prefill", "tandem-decode")
    assert (role(root), role(prefill), role(decode)) == (
        *("tandem-gateway", "tandem-prefill", "tandem-decode"),
    )


async def test_spans_say_what_happened_and_never_what_was_said(recorded: Recorded) -> None:
    trace_id = "a" * 32
    response = await post(recorded, traceparent=f"00-{trace_id}-{SPAN}-01")
    spans = await recorded.complete_trace(int(trace_id, 16))
    usage, report = response.json()["usage"], response.json()["tandem"]
    told = attributes(one(spans, REST))
    assert told["http.response.status_code"] == 200
    assert told["gen_ai.operation.name"] == "text_completion"
    assert told["gen_ai.request.model"] == response.json()["model"]
    assert told["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == TOKENS
    assert told["tandem.kept_tokens"] == report["kept_tokens"]
    assert [event.name for event in one(spans, REST).events] == ["first_token"]
    moved = attributes(one(spans, "transfer"))
    assert moved["tandem.kv_bytes"] == report["kv_bytes"]
    assert moved["tandem.transport"] == report["transport"]
    decode = one(spans, DECODE, SpanKind.SERVER)
    assert [event.name for event in decode.events] == ["tokens"]
    assert attributes(decode)["tandem.attended"] == report["attended"]
    answer = response.json()["choices"][0]["text"]
    text = " ".join(span.to_json() for span in spans)
    assert "ylophone" not in text
    assert answer.strip()[:20] not in text
    assert all(span.status.is_ok or span.status.is_unset for span in spans)


async def test_phases_follow_each_other(recorded: Recorded) -> None:
    trace_id = "b" * 32
    await post(recorded, traceparent=f"00-{trace_id}-{SPAN}-01")
    spans = await recorded.complete_trace(int(trace_id, 16))
    queue, first, steps = (
        one(spans, f"decode.{name}") for name in ("queue", "first_step", "steps")
    )
    for before, after in ((queue, first), (first, steps)):
        assert before.end_time is not None
        assert after.start_time is not None
        assert abs(after.start_time - before.end_time) < 5_000_000
    root, transfer = one(spans, REST), one(spans, "transfer")
    assert root.start_time is not None
    assert transfer.start_time is not None
    assert root.start_time <= transfer.start_time


async def test_a_request_without_a_caller_begins_a_trace(recorded: Recorded) -> None:
    response = await post(recorded, **{"x-request-id": "alone"})
    assert response.status_code == 200
    url = f"http://{recorded.stack.gateway.admin_address}"
    async with httpx.AsyncClient(base_url=url) as admin:
        trace_id = (await admin.get("/debug/requests/alone")).json()["trace_id"]
        spans = await recorded.complete_trace(int(trace_id, 16))
        assert one(spans, REST).parent is None
        headers = {"accept": "application/openmetrics-text"}
        metrics = (await admin.get("/metrics", headers=headers)).text
    assert f'trace_id="{trace_id}"' in metrics


async def test_refusals_fail_their_span(recorded: Recorded) -> None:
    trace_id = "c" * 32
    headers = {"traceparent": f"00-{trace_id}-{SPAN}-01"}
    body = {"prompt": "x", "temperature": 9}
    response = await recorded.stack.http.post("/v1/completions", json=body, headers=headers)
    assert response.status_code == 400
    span = one(recorded.spans(int(trace_id, 16)), REST)
    assert attributes(span)["error.type"] == "invalid_value"


async def test_grpc_takes_the_trace_up_too(recorded: Recorded) -> None:
    trace_id = "d" * 32
    stub = inference_pb2_grpc.InferenceServiceStub(recorded.stack.channel)
    request = inference_pb2.GenerateRequest(
        text=SECRET, stop=common_pb2.StopConditions(max_tokens=4), ignore_eos=True
    )
    metadata = (("traceparent", f"00-{trace_id}-{SPAN}-01"),)
    async for _ in stub.Generate(request, metadata=metadata):
        pass
    spans = await recorded.complete_trace(int(trace_id, 16))
    root = one(spans, "tandem.v1.InferenceService/Generate")
    assert root.parent is not None
    assert root.parent.span_id == int(SPAN, 16)
    assert attributes(root)["gen_ai.usage.output_tokens"] == 4


async def test_an_unsampled_caller_is_not_recorded(recorded: Recorded) -> None:
    trace_id = "e" * 32
    response = await post(recorded, traceparent=f"00-{trace_id}-{SPAN}-00")
    assert response.status_code == 200
    assert recorded.spans(int(trace_id, 16)) == []


async def test_polls_and_probes_make_no_spans(recorded: Recorded) -> None:
    for path in ("/health/ready", "/metrics", "/v1/models"):
        await recorded.stack.http.get(path)
    for source in recorded.sources:
        source.flush()
    names = {span.name for span in recorded.exporter.get_finished_spans()}
    assert not {name for name in names if "Control" in name or "GET" in name}

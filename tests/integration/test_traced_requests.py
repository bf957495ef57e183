"""`tandem.trace` and the log of the last requests, over real workers."""

import json
from typing import Any

import httpx
import pytest

from protos.tandem.v1 import common_pb2, inference_pb2
from tests.support.full_stack import Stack
from tests.support.gateway_rig import data_frames, strict_json

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "A prompt of plain text that fills a few pages. " * 6
TOKENS = 24
ASKED = {"mode": "both", "keep_rate": 0.4, "min_keep": 16, "page_budget": 4, "trace": True}
HOPS = ["gateway", "prefill", "transfer", "decode"]


def body_of(**fields: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return {**body, **fields}


async def complete(stack: Stack, **tandem: Any) -> dict[str, Any]:
    response = await stack.http.post("/v1/completions", json=body_of(tandem=tandem))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = strict_json(response.text)
    return answer


async def debug(stack: Stack, path: str = "") -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{stack.gateway.admin_address}") as http:
        return await http.get(f"/debug/requests{path}")


async def test_the_trace_says_what_was_kept_and_read(stack: Stack) -> None:
    answer = await complete(stack, **ASKED)
    report = answer["tandem"]
    prompt, pages = report["trace"]["prompt"], report["trace"]["pages"]
    length = answer["usage"]["prompt_tokens"]
    assert prompt["prompt_tokens"] == length
    columns = -(-length // prompt["column_tokens"])
    assert len(prompt["score"]) == columns
    assert sorted(n for layout in prompt["layouts"] for n in layout["layers"]) == list(range(6))
    (whole, *_), (kept,) = (
        prompt["layouts"],
        [each for each in prompt["layouts"] if 5 in each["layers"]],
    )
    assert whole["spans"] == [[0, length]]
    assert kept["kept_tokens"] == report["kept_tokens"] < length
    assert sum(end - start for start, end in kept["spans"]) == report["kept_tokens"]
    assert pages["policy"] == report["pages"]["policy"]
    assert pages["total_steps"] == len(pages["steps"]) == TOKENS - 1
    assert sum(step["attended"] for step in pages["steps"]) == report["attended"]
    assert sum(step["dense"] for step in pages["steps"]) == report["dense"]
    assert [step["position"] for step in pages["steps"]] == list(range(length, length + TOKENS - 1))
    for step in pages["steps"]:
        assert len(step["read"]) == len(pages["layers"])
        assert all(0 <= a < b <= pages["columns"] for read in step["read"] for a, b in read)
    selecting = [step for step in pages["steps"] if step["refreshed"]]
    assert selecting


async def test_the_trace_says_when_the_kv_was_computed_and_moved(stack: Stack) -> None:
    report = (await complete(stack, **ASKED))["tandem"]
    handoff = report["trace"]["prompt"]["handoff"]
    slots = [0] * 6
    for block in handoff["computed"]:
        assert block["first_slot"] == slots[block["layer"]]
        slots[block["layer"]] += block["slots"]
    kept = report["kept_tokens"]
    assert slots[0] == report["prompt_tokens"]
    assert slots[-1] == kept
    assert sum(push["bytes"] for push in handoff["pushed"]) == report["kv_bytes"]
    assert handoff["left_out"] == 0
    assert handoff["computed"][-1]["ms"] <= handoff["computed_ms"] <= handoff["sealed_ms"]
    assert handoff["sealed_ms"] <= handoff["adopted_ms"]


async def test_the_waterfall_covers_the_four_hops_and_adds_up(stack: Stack) -> None:
    trace = (await complete(stack, **ASKED))["tandem"]["trace"]
    bars = trace["waterfall"]
    assert [hop for hop in HOPS if any(bar["hop"] == hop for bar in bars)] == HOPS
    assert [bar["start_ms"] for bar in bars] == sorted(bar["start_ms"] for bar in bars)
    assert all(bar["start_ms"] + bar["ms"] <= trace["total_ms"] + 5 for bar in bars)
    by_phase = {bar["phase"]: bar for bar in bars}
    assert set(by_phase) == {
        *("tokenize", "gateway_queue", "prefill_queue", "prefill", "transfer"),
        *("decode_queue", "first_decode", "stream"),
    }
    assert by_phase["prefill"]["start_ms"] <= trace["ttft_ms"] <= trace["total_ms"]
    assert by_phase["first_decode"]["start_ms"] >= by_phase["prefill"]["start_ms"]


async def test_nothing_is_told_unasked_and_the_answer_is_the_same(stack: Stack) -> None:
    traced = await complete(stack, **ASKED)
    plain = await complete(stack, **{**ASKED, "trace": False})
    assert "trace" not in plain["tandem"]
    assert traced["choices"][0]["text"] == plain["choices"][0]["text"]
    assert traced["system_fingerprint"] == plain["system_fingerprint"]


async def test_a_stream_tells_it_in_the_usage_chunk(stack: Stack) -> None:
    body = body_of(tandem=ASKED, stream=True, stream_options={"include_usage": True})
    response = await stack.http.post("/v1/completions", json=body)
    frames = data_frames(response.content)
    assert frames[-2]["tandem"]["trace"]["prompt"]["layouts"]
    assert all("tandem" not in frame for frame in frames[:-2])


async def test_full_mode_keeps_and_reads_everything(stack: Stack) -> None:
    trace = (await complete(stack, mode="full", trace=True))["tandem"]["trace"]
    assert trace["prompt"]["score"] is None
    assert len(trace["prompt"]["layouts"]) == 1
    assert {each["role"] for each in trace["pages"]["layers"]} == {"full"}
    assert all(len(read) == 1 for step in trace["pages"]["steps"] for read in step["read"])
    assert all(step["attended"] == step["dense"] for step in trace["pages"]["steps"])


async def test_one_token_has_no_pages(stack: Stack) -> None:
    response = await stack.http.post(
        "/v1/completions", json=body_of(tandem={"trace": True}, max_tokens=1)
    )
    trace = response.json()["tandem"]["trace"]
    assert trace["pages"] is None
    assert {bar["hop"] for bar in trace["waterfall"]} <= {"gateway", "prefill"}


async def test_the_first_of_several_answers_is_told(stack: Stack) -> None:
    response = await stack.http.post("/v1/completions", json=body_of(tandem=ASKED, n=2))
    trace = response.json()["tandem"]["trace"]
    assert trace["pages"]["total_steps"] == TOKENS - 1


async def test_grpc_tells_the_same(stack: Stack) -> None:
    rest = (await complete(stack, **ASKED))["tandem"]["trace"]
    request = inference_pb2.GenerateRequest(
        text=PROMPT,
        sampling=common_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1),
        stop=common_pb2.StopConditions(max_tokens=TOKENS),
        options=common_pb2.RequestOptions(
            mode=common_pb2.MODE_BOTH, keep_rate=0.4, min_keep=16, page_budget=4, trace=True
        ),
        ignore_eos=True,
    )
    _, finished = await stack.generate(request)
    trace = finished.report.trace
    spans = [list(layout.spans) for layout in trace.prompt.layouts]
    told = [layout["spans"] for layout in rest["prompt"]["layouts"]]
    assert spans == [[bound for span in layout for bound in span] for layout in told]
    assert trace.pages.total_steps == TOKENS - 1
    assert {bar.hop for bar in trace.waterfall} == set(HOPS)
    request.options.trace = False
    _, plain = await stack.generate(request)
    assert not plain.report.HasField("trace")


async def test_the_log_remembers_requests_without_their_words(stack: Stack) -> None:
    response = await stack.http.post(
        "/v1/completions", json=body_of(tandem=ASKED), headers={"x-request-id": "remember-me"}
    )
    assert response.status_code == 200
    listing = strict_json((await debug(stack)).text)
    newest = listing["requests"][0]
    assert (newest["request_id"], newest["state"], newest["code"]) == ("remember-me", "ok", "")
    assert len(newest["trace_id"]) == 32
    assert (newest["completion_tokens"], newest["attempts"], newest["traced"]) == (TOKENS, 1, True)
    found = strict_json((await debug(stack, "/remember-me")).text)
    assert {key: found[key] for key in newest} == newest
    assert found["trace"] == response.json()["tandem"]["trace"]
    assert found["report"]["route"] == response.json()["tandem"]["route"]
    assert found["tries"] == [
        {
            "attempt": 1,
            "prefill": stack.prefill.app.worker_id,
            "decode": stack.decode.worker_id,
            "failed": None,
        }
    ]
    assert found["prompt"] is None
    assert "plain text" not in json.dumps(found)
    again = strict_json((await debug(stack, f"/{found['handoff_id']}")).text)
    assert again == found


async def test_an_unknown_request_is_a_404_in_the_one_error_shape(stack: Stack) -> None:
    response = await debug(stack, "/never-seen")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_the_log_is_not_on_the_public_port(stack: Stack) -> None:
    assert (await stack.http.get("/debug/requests")).status_code == 404

"""The tiny model through `tandem up`: what clients of the pair rely on."""

import concurrent.futures
import json
import subprocess
import sys
import time

import grpc
import httpx
import openai
import pytest

from protos.tandem.v1 import (
    control_pb2,
    control_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)
from tests.support.processes import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
REPORT_KEYS = {
    "ttft_ms", "tokens_per_s", "phases_ms", "prompt_tokens", "kept_tokens", "kv_bytes",
    "transport", "attended", "dense", "route",
}  # fmt: skip


@pytest.fixture(scope="module")
def up(tiny_model_dir):
    with running_up("--model", str(tiny_model_dir)) as process:
        yield process


@pytest.fixture(scope="module")
def client(up):
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def decode_load(up):
    with grpc.insecure_channel(up.worker("decode-0")) as channel:
        stub = control_pb2_grpc.ControlServiceStub(channel)
        return stub.GetLoad(control_pb2.GetLoadRequest(), timeout=10)


def wait_idle(up, timeout_s: float = 10.0):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        load = decode_load(up)
        idle = load.free_pages == load.total_pages and load.running_requests == 0
        if idle and load.free_slab_bytes == load.total_slab_bytes:
            return
        time.sleep(0.05)
    raise AssertionError(f"pages are still held: {load}")


def stream_text(client, prompt, **extra):
    body = {"temperature": 0, "max_tokens": 12, **extra}
    stream = client.completions.create(model="tiny", prompt=prompt, stream=True, **body)
    return "".join(choice.text for chunk in stream for choice in chunk.choices)


def test_openai_client_streams_chat_with_usage_last(client):
    stream = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": PROMPT}],
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=8,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert sum(bool(c.choices and c.choices[0].delta.role) for c in chunks) == 1
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    usage, report = chunks[-1].usage, chunks[-1].model_extra["tandem"]
    assert chunks[-1].choices == []
    assert usage.completion_tokens == 8
    assert usage.prompt_tokens == report["prompt_tokens"]
    assert set(report) >= REPORT_KEYS
    assert report["kept_tokens"] < report["prompt_tokens"]
    assert report["ttft_ms"] > 0
    assert report["transport"] == "grpc"


def test_full_mode_keeps_everything(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": PROMPT}],
        max_completion_tokens=4,
        temperature=0,
        extra_body={"tandem": {"mode": "full"}, "ignore_eos": True},
    )
    report = answer.model_extra["tandem"]
    assert report["kept_tokens"] == report["prompt_tokens"] == answer.usage.prompt_tokens
    assert report["attended"] == report["dense"]


def test_streamed_completion_equals_the_whole_one(client):
    whole = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=12, temperature=0, extra_body={"ignore_eos": True}
    )
    assert stream_text(client, PROMPT, extra_body={"ignore_eos": True}) == whole.choices[0].text
    assert whole.usage.completion_tokens == 12


def test_generated_stub_streams_generate(up):
    with grpc.insecure_channel(up.grpc) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(model="tiny", text=PROMPT, ignore_eos=True)
        request.stop.max_tokens = 6
        events = list(stub.Generate(request, timeout=60))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "accepted"
    assert kinds[-1] == "finished"
    assert set(kinds[1:-1]) == {"delta"}
    tokens = [token for event in events for token in event.delta.tokens]
    assert len(tokens) == 6 == events[-1].finished.usage.completion_tokens
    assert events[-1].finished.report.kept_tokens < events[0].accepted.prompt_tokens


def test_eight_at_once_answer_as_one_by_one(client):
    prompts = [f"{index}: {PROMPT[index * 7 : 200 + index * 31]}" for index in range(8)]
    extra = {"extra_body": {"ignore_eos": True}}
    alone = [stream_text(client, prompt, **extra) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: stream_text(client, prompt, **extra), prompts))
    assert together == alone


def test_killed_client_frees_its_pages(up):
    wait_idle(up)
    body = {
        "model": "tiny", "prompt": PROMPT, "max_tokens": 300, "stream": True, "ignore_eos": True,
    }  # fmt: skip
    code = (
        "import httpx, json, sys\n"
        "with httpx.stream('POST', sys.argv[1], json=json.loads(sys.argv[2]), timeout=60) as r:\n"
        "    for line in r.iter_lines():\n"
        "        print(line, flush=True)\n"
    )
    url = f"{up.url}/v1/completions"
    reader = subprocess.Popen(
        [sys.executable, "-c", code, url, json.dumps(body)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    seen = [line for line, _ in zip(iter(reader.stdout.readline, ""), range(4), strict=False)]
    reader.kill()
    reader.wait()
    reader.stdout.close()
    assert any(line.startswith("data: ") for line in seen)
    wait_idle(up)


BAD = [
    ("{not json", 400, "invalid_value"),
    (json.dumps({"model": "tiny", "messages": []}), 400, None),
    (json.dumps({"model": "tiny"}), 400, "missing_required_parameter"),
    (json.dumps({"model": "tiny", "messages": "hello"}), 400, "invalid_value"),
    (
        json.dumps({"model": "other", "messages": [{"role": "user", "content": "x"}]}),
        404,
        "model_not_found",
    ),
    (
        json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "word " * 4000}]}),
        400,
        "context_length_exceeded",
    ),
    (
        '{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        400,
        None,
    ),
    (
        json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "top_p": 3}),
        400,
        "invalid_value",
    ),
    ("x" * 10_000_000, 413, "request_too_large"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD)
def test_bad_input_gets_its_status_and_code_and_the_next_request_is_fine(
    up, client, body, status, code
):
    response = httpx.post(
        f"{up.url}/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json"},
        timeout=30,
        trust_env=False,
    )
    error = response.json()["error"]
    assert response.status_code == status, error
    assert set(error) == {"message", "type", "param", "code"}
    assert code is None or error["code"] == code
    assert not [line for line in up.err if "Traceback" in line]
    assert stream_text(client, "fine", extra_body={"ignore_eos": True})


def test_health_and_models(up):
    get = lambda path: httpx.get(up.url + path, timeout=10, trust_env=False)  # noqa: E731
    assert get("/health/live").status_code == 200
    assert get("/health/ready").status_code == 200
    assert [model["id"] for model in get("/v1/models").json()["data"]] == ["tiny"]
    assert "tandem_ttft_seconds" in get("/metrics").text
    assert get("/version").status_code == 200

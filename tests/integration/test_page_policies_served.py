"""Page policies by request, through REST and gRPC, over real workers."""

from typing import Any

import grpc.aio
import openai
import pytest

from protos.tandem.v1 import common_pb2, inference_pb2
from shared.rpc.status import error_from_rpc
from shared.types.page_policies import PagePolicyName
from tests.support.full_stack import Stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "A prompt of plain text that fills a few pages. " * 5
TOKENS = 40
SELECTING = [name for name in PagePolicyName if name is not PagePolicyName.DENSE]


async def complete(stack: Stack, **tandem: Any) -> tuple[str, dict[str, Any]]:
    """Text of a greedy answer, and what its report says."""
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    response = await stack.http.post("/v1/completions", json={**body, "tandem": tandem})
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["text"], answer["tandem"]


def request_of(**options: Any) -> inference_pb2.GenerateRequest:
    """The same request for gRPC."""
    return inference_pb2.GenerateRequest(
        text=PROMPT,
        sampling=common_pb2.SamplingParams(temperature=0, top_p=1, repetition_penalty=1),
        stop=common_pb2.StopConditions(max_tokens=TOKENS),
        options=common_pb2.RequestOptions(mode=common_pb2.MODE_SPARSE, **options),
        ignore_eos=True,
    )


@pytest.mark.parametrize("policy", SELECTING)
async def test_the_policy_that_was_asked_for_ran_and_is_reported(
    stack: Stack, policy: PagePolicyName
) -> None:
    small = {"page_policy": policy.value, "page_budget": 5}
    text, report = await complete(stack, mode="sparse", **small)
    reads_recency = "recency_pages" in policy.reads
    assert report["pages"]["policy"] == policy
    assert report["pages"]["page_budget"] == 5
    assert report["pages"]["recency_pages"] == (1 if reads_recency else None)
    assert report["attended_ratio"] == pytest.approx(report["attended"] / report["dense"], abs=1e-4)
    assert 0 < report["attended_ratio"] < 1
    other, finished = await stack.generate(request_of(**small))
    assert other == text
    assert finished.report.pages.policy == policy
    assert finished.report.pages.HasField("recency_pages") == reads_recency
    assert finished.report.attended_ratio == pytest.approx(report["attended_ratio"], abs=1e-4)


@pytest.mark.parametrize("policy", SELECTING)
async def test_a_budget_for_everything_is_dense(stack: Stack, policy: PagePolicyName) -> None:
    dense, reference = await complete(stack, mode="full")
    assert (reference["pages"]["policy"], reference["attended_ratio"]) == ("dense", 1.0)
    text, report = await complete(stack, mode="sparse", page_policy=policy.value, page_budget=99)
    assert (text, report["pages"]["policy"], report["attended_ratio"]) == (dense, policy, 1.0)


async def test_dense_may_be_asked_for_by_name(stack: Stack) -> None:
    dense, _ = await complete(stack, mode="full")
    text, report = await complete(stack, mode="sparse", page_policy="dense")
    assert (text, report["pages"]["policy"]) == (dense, "dense")
    assert report["pages"]["page_budget"] is None


async def test_every_option_of_delta_reaches_it(stack: Stack) -> None:
    options = {"page_layout": "segment", "page_heads": "kv_head", "page_refresh": 4}
    text, report = await complete(
        stack, mode="both", page_budget=6, recency_pages=2, page_mass=0.8, **options
    )
    assert report["pages"] == {
        "policy": "delta",
        "page_budget": 6,
        "recency_pages": 2,
        "layout": "segment",
        "heads": "kv_head",
        "refresh": 4,
        "mass": 0.8,
    }
    request = request_of(page_budget=6, recency_pages=2, page_mass=0.8, **options)
    request.options.mode = common_pb2.MODE_BOTH
    other, finished = await stack.generate(request)
    pages = finished.report.pages
    assert other == text
    assert (pages.layout, pages.heads, pages.refresh) == ("segment", "kv_head", 4)
    assert pages.mass == pytest.approx(0.8)


async def test_openai_clients_send_it_as_extra_body(stack: Stack) -> None:
    async with openai.AsyncOpenAI(base_url=stack.url, api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={
                "ignore_eos": True,
                "tandem": {"mode": "sparse", "page_policy": "streaming", "page_budget": 3},
            },
        )
        chunks = [chunk async for chunk in stream]
        report = chunks[-1].model_extra["tandem"]  # type: ignore[index]
        assert report["pages"]["policy"] == "streaming"
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(
                model="tiny", prompt="hi", extra_body={"tandem": {"page_policy": "snapkv"}}
            )
    assert caught.value.param == "tandem.page_policy"
    for name in PagePolicyName:
        assert name in caught.value.message


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"page_policy": "snapkv"}, "tandem.page_policy"),
    ({"page_layout": "boards"}, "tandem.page_layout"),
    ({"page_heads": "query_head"}, "tandem.page_heads"),
    ({"page_refresh": 0}, "tandem.page_refresh"),
    ({"page_mass": 0.0}, "tandem.page_mass"),
    ({"page_mass": 1.5}, "tandem.page_mass"),
    ({"page_policy": "quest", "page_heads": "kv_head"}, "tandem.page_heads"),
    ({"page_policy": "streaming", "recency_pages": 2}, "tandem.recency_pages"),
    ({"page_policy": "dense", "page_budget": 9}, "tandem.page_budget"),
    ({"page_policy": "tidal", "page_mass": 0.5}, "tandem.page_mass"),
    ({"page_policy": "raas", "page_refresh": 2}, "tandem.page_refresh"),
    ({"page_policy": "h2o", "page_layout": "board"}, "tandem.page_layout"),
    ({"page_budget": 4, "recency_pages": 3}, "tandem.page_budget"),
]


@pytest.mark.parametrize(("tandem", "param"), REFUSED)
async def test_mistakes_are_refused_before_any_prefill(
    stack: Stack, tandem: dict[str, Any], param: str
) -> None:
    before = stack.prefill.runner.runs
    response = await stack.http.post("/v1/completions", json={"prompt": PROMPT, "tandem": tandem})
    error = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    assert (error["param"], error["code"]) == (param, "invalid_value")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stack.generate(request_of(**tandem))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_from_rpc(caught.value).param == param
    assert stack.prefill.runner.runs == before

"""The logic of the page's scripts, inside the browser that runs them."""

import json
import random
import shlex

import pytest
import pytest_asyncio

from tests.support.browser import visit
from tests.support.gateway_rig import running_rig

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

FIELDS = {
    "endpoint": "chat", "model": "", "system": "", "prompt": "hi", "max_tokens": "8",
    "temperature": "0", "top_p": "", "top_k": "", "seed": "", "stop": "", "mode": "",
    "keep_rate": "", "min_keep": "", "page_budget": "", "recency_pages": "", "page_policy": "",
    "trace": False, "more": "",
}  # fmt: skip

PROMPT = {
    "prompt_tokens": 10,
    "column_tokens": 4,
    "score": None,
    "layouts": [
        {"layers": [0, 2], "kept_tokens": 10, "share": [1.0, 1.0, 1.0], "spans": [[0, 10]]},
        {"layers": [1], "kept_tokens": 4, "share": [0.5, 0.0, 1.0], "spans": [[0, 2], [8, 10]]},
    ],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(browser, tiny_model_dir):
    async with (
        running_rig(tiny_model_dir) as rig,
        visit(browser, rig.gateway.rest_address) as visited,
    ):
        yield visited


async def body_of(page, turns=(), **fields):
    script = "(m, [fields, turns]) => m.bodyOf(fields, turns)"
    return await page.module("request.js", script, [FIELDS | fields, list(turns)])


async def test_events_are_the_same_however_the_stream_is_cut(page):
    stream = (
        ': ping\n\ndata: {"a": "é\\n"}\r\n\r\ndata: one\ndata:  two\n\n'
        "id: 7\rdata: é\r\rdata: no end"
    )
    script = """(m, cuts) => cuts.map((chunks) => {
        const parser = new m.EventParser();
        return chunks.flatMap((chunk) => parser.push(chunk));
    })"""
    draw = random.Random(5)
    cuts = [[stream], list(stream)]
    for _ in range(60):
        places = sorted(draw.sample(range(1, len(stream)), draw.randrange(1, 9)))
        cuts.append([stream[a:b] for a, b in zip([0, *places], [*places, None], strict=True)])
    expected = ['{"a": "é\\n"}', "one\n two", "é"]
    assert await page.module("sse.js", script, cuts) == [expected] * len(cuts)


async def test_characters_that_were_cut_in_half_come_whole(page):
    script = """async (m, bytes) => {
        const stream = new ReadableStream({ start(controller) {
            for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
            controller.close();
        } });
        const found = [];
        for await (const data of m.eventsOf(stream)) found.push(data);
        return found;
    }"""
    raw = "data: 🙂 ü\n\ndata: [DONE]\n\n".encode()
    assert await page.module("sse.js", script, list(raw)) == ["🙂 ü", "[DONE]"]


async def test_only_what_is_filled_in_is_sent(page):
    assert await body_of(page, temperature="", max_tokens="") == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_every_field_arrives_with_its_type(page):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = await body_of(
        page,
        turns,
        model="m", system="be brief", top_p="0.5", top_k="3", seed="7", stop="END\n\n two",
        mode="both", keep_rate="0.25", min_keep="0", page_budget="9", recency_pages="2",
        page_policy="quest", trace=True,
    )  # fmt: skip
    assert body["messages"] == [
        {"role": "system", "content": "be brief"}, *turns, {"role": "user", "content": "hi"},
    ]  # fmt: skip
    assert (body["top_p"], body["top_k"], body["seed"]) == (0.5, 3, 7)
    assert body["stop"] == ["END", " two"]
    assert body["tandem"] == {
        "mode": "both", "keep_rate": 0.25, "min_keep": 0, "page_budget": 9, "recency_pages": 2,
        "page_policy": "quest", "trace": True,
    }  # fmt: skip
    plain = await body_of(page, endpoint="completions", system="unused")
    assert plain["prompt"] == "hi"
    assert "messages" not in plain


async def test_more_fields_are_merged_into_objects_and_replace_the_rest(page):
    more = json.dumps({"tandem": {"mass": 0.9}, "temperature": 1, "stop": ["x"]})
    body = await body_of(page, mode="prune", stop="a", more=more)
    assert body["tandem"] == {"mode": "prune", "mass": 0.9}
    assert body["temperature"] == 1
    assert body["stop"] == ["x"]
    ids = await body_of(page, endpoint="completions", more='{"prompt": [1, 2, 3]}')
    assert ids["prompt"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("more", "said"),
    [("{", "not JSON"), ("[1]", "must be a JSON object"), ('{"n": 2}', "one answer"),
     ('{"prompt": ["a", "b"]}', "one prompt"), ('{"stream": false}', "streams")],
)  # fmt: skip
async def test_more_fields_that_cannot_be(page, more, said):
    script = "(m, fields) => { try { m.bodyOf(fields) } catch (error) { return error.message } }"
    assert said in await page.module("request.js", script, FIELDS | {"more": more})


async def test_curl_survives_a_shell(page):
    body = {"prompt": 'it\'s "quoted" $HOME `x` \\ \n ü', "stream": True}
    script = "(m, body) => m.curlOf('http://h/v1/completions', body, { withKey: true })"
    words = shlex.split(await page.module("request.js", script, body))
    assert words[:3] == ["curl", "-N", "http://h/v1/completions"]
    assert json.loads(words[words.index("-d") + 1]) == body
    assert "authorization: Bearer $TANDEM_API_KEY" in words


async def test_where_answers_part(page):
    script = """(m, pairs) => pairs.map(([a, b]) => m.firstDivergence(
        a.map((text) => ({ text, bytes: null })), b.map((text) => ({ text, bytes: null }))))"""
    pairs = [
        [["a", "b"], ["a", "b"]],
        [["a", "b"], ["a", "c"]],
        [["a"], ["a", "b"]],
        [[], []],
        [["x"], []],
    ]
    found = await page.module("divergence.js", script, pairs)
    assert found == [None, 1, 1, None, 0]


async def test_tokens_of_one_text_differ_by_their_bytes(page):
    script = "(m, [a, b]) => [m.firstDivergence(a, b), m.joined(a)]"
    half = [{"text": "\ufffd", "bytes": [0xC3]}, {"text": "\ufffd", "bytes": [0xBC]}]
    other = [{"text": "\ufffd", "bytes": [0xC3]}, {"text": "\ufffd", "bytes": [0xA9]}]
    assert await page.module("divergence.js", script, [half, other]) == [1, "ü"]


async def test_the_gap_is_what_full_attention_gave_to_the_other_choice(page):
    script = "(m, [a, b]) => [m.gapAt(a, b, 0), m.gapAt(a, b, 1), m.gapAt(a, b, 2)]"
    left = [
        {"text": "x", "logprob": -0.5, "top": {"x": -0.5, "y": -2.0}},
        {"text": "z", "logprob": -0.1, "top": {"z": -0.1}},
    ]
    right = [{"text": "y"}, {"text": "never listed"}, {"text": "longer"}]
    assert await page.module("divergence.js", script, [left, right]) == [1.5, None, None]


async def test_both_runs_differ_in_the_mode_only(page):
    script = "(m, bodies) => bodies.map(m.bodiesOf)"
    chat = {"messages": [], "temperature": 0, "tandem": {"keep_rate": 0.3, "trace": True}}
    drawn = {"prompt": "x", "temperature": 1, "tandem": {"mode": "prune"}}
    seeded = {"prompt": "x", "seed": 4}
    greedy, sampled, kept = await page.module("compare.js", script, [chat, drawn, seeded])
    assert greedy["plain"]["tandem"] == {"mode": "full"}
    assert greedy["fast"]["tandem"] == {"mode": "both", "keep_rate": 0.3}
    assert (greedy["plain"]["logprobs"], greedy["plain"]["top_logprobs"]) == (True, 5)
    assert "seed" not in greedy["plain"]
    assert sampled["fast"]["tandem"] == {"mode": "prune"}
    assert sampled["plain"]["seed"] == sampled["fast"]["seed"] == 1
    assert sampled["plain"]["logprobs"] == 5
    assert kept["plain"]["seed"] == kept["fast"]["seed"] == 4


BARS = [
    {"hop": "gateway", "phase": "tokenize", "start_ms": 0, "ms": 10},
    {"hop": "prefill", "phase": "prefill", "start_ms": 10, "ms": 90},
    {"hop": "decode", "phase": "stream", "start_ms": 110, "ms": 9000},
]


@pytest.mark.parametrize("whole", [False, True])
async def test_bars_keep_their_order_and_stay_inside(page, whole):
    script = "(m, [bars, whole]) => m.layout(bars, 100, { whole })"
    placed = await page.module("waterfall.js", script, [BARS, whole])
    assert placed["span"] == pytest.approx(9110 if whole else 105)
    xs = [bar["x"] for bar in placed["bars"]]
    assert xs == sorted(xs)
    assert all(bar["x"] <= 1000 and bar["width"] >= 2 for bar in placed["bars"])
    assert [bar["cut"] for bar in placed["bars"]] == [False, False, not whole]
    assert placed["ttft"] == pytest.approx(100 / placed["span"] * 1000)
    first = placed["bars"][0]
    assert first["width"] == pytest.approx(max(10 / placed["span"] * 1000, 2))


async def test_a_request_without_bars_or_first_token_can_be_drawn(page):
    placed = await page.module("waterfall.js", "(m) => m.layout([], null, { whole: false })")
    assert placed["bars"] == []
    assert placed["ttft"] is None
    assert placed["span"] > 0


async def test_lengths_alone_are_laid_end_to_end_in_the_order_of_life(page):
    phases = {"decode": 5, "prefill": 3, "transfer": 2, "prefill_queue": 1}
    bars = await page.module("waterfall.js", "(m, phases) => m.barsOfPhases(phases)", phases)
    assert [bar["phase"] for bar in bars] == ["prefill_queue", "prefill", "transfer", "decode"]
    assert [bar["start_ms"] for bar in bars] == [0, 1, 4, 6]


async def test_rows_of_the_heat_map_are_the_models_layers(page):
    script = """(m, prompt) => [
        m.layerRows(prompt).map((row) => [row.layer, row.layout.kept_tokens]),
        m.aggregate(prompt)[0].layout, [0, 1, 2].map((column) => m.positionsOf(prompt, column)),
        m.runsOf(prompt.layouts[1].spans, 10)]"""
    rows, together, positions, runs = await page.module("heatmap.js", script, PROMPT)
    assert rows == [[0, 10], [1, 4], [2, 10]]
    assert together["share"] == pytest.approx([2.5 / 3, 2 / 3, 1.0])
    assert together["kept_tokens"] == 8
    assert positions == [[0, 4], [4, 8], [8, 10]]
    assert [(run["kept"], run["start"], run["end"]) for run in runs] == [
        (True, 0, 2), (False, 2, 8), (True, 8, 10),
    ]  # fmt: skip


async def test_runs_cover_the_prompt_whatever_was_kept(page):
    script = "(m, cases) => cases.map(([spans, total]) => m.runsOf(spans, total))"
    cases = [[[], 5], [[[0, 5]], 5], [[[2, 3], [3, 4]], 6], [[], 0]]
    for (spans, total), runs in zip(
        cases, await page.module("heatmap.js", script, cases), strict=True
    ):
        assert sum(run["end"] - run["start"] for run in runs) == total
        kept = [[run["start"], run["end"]] for run in runs if run["kept"]]
        assert kept == spans


async def test_columns_that_a_step_read(page):
    script = "(m, [ranges, columns]) => columns.map((column) => m.readsColumn(ranges, column))"
    found = await page.module("strip.js", script, [[[0, 2], [5, 6]], list(range(7))])
    assert found == [True, True, False, False, False, True, False]


async def test_a_slower_transport_than_both_speak_is_told(page):
    workers = [
        {"worker_id": "p", "transports": ["grpc", "nixl"]},
        {"worker_id": "d", "transports": ["nixl", "grpc"]},
        {"worker_id": "old", "transports": ["grpc"]},
    ]
    flows = [
        {"prefill": "p", "decode": "d", "transport": "grpc"},
        {"prefill": "p", "decode": "d", "transport": "nixl"},
        {"prefill": "p", "decode": "old", "transport": "grpc"},
        {"prefill": "gone", "decode": "d", "transport": "grpc"},
        {"prefill": "d", "decode": "d", "transport": "loopback"},  # it reads prompts itself
    ]
    script = (
        "(m, [workers, flows]) => m.flowsOf(workers, flows).map((flow) => [flow.best, flow.slow])"
    )
    assert await page.module("flowmap.js", script, [workers, flows]) == [
        ["nixl", True], ["nixl", False], ["grpc", False], [None, False],
        [None, False],
    ]  # fmt: skip


async def test_seconds_without_requests_are_gaps_in_the_chart(page):
    points = [{"p50": value} for value in (1, 2, None, 3, None, 4, 5)]
    script = "(m, points) => m.linesOf(points, 'p50', 5).map((line) => line.split(' ').length)"
    assert await page.module("history.js", script, points) == [2, 2]


async def test_kv_use_counts_the_workers_that_tell(page):
    workers = [{"total_pages": 0, "free_pages": 0}, {"total_pages": 8, "free_pages": 6}]
    script = "(m, lists) => lists.map(m.kvUse)"
    told, untold = await page.module("live.js", script, [workers, workers[:1]])
    assert told == {"used": 2, "total": 8, "share": 0.25}
    assert untold is None

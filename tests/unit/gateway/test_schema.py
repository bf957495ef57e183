"""Bodies, ignored fields, translation, and reply details."""

import contextlib
import math
import time
from typing import Any

import orjson
import pytest

from gateway.job import Finished, RequestReport
from gateway.prompt_parts import AskedParts
from gateway.schema.chat import ChatBody
from gateway.schema.completions import CompletionBody
from gateway.schema.generation import TandemOptions
from gateway.schema.logprobs import UNLIKELY, chat_entries
from gateway.schema.parse import parse_body
from gateway.schema.translate import fit_context, options_of, parts_of, sampling_of, stop_of
from gateway.schema.unknown import check_unknown
from shared.errors import ContextLengthError, InvalidRequestError
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import PageHeads, PageLayout
from shared.types.options import Mode, PromptPart, TokenRange
from shared.types.page_policies import PagePolicyName
from shared.types.sampling import FinishReason, SampledToken
from tests.support.tiny_tokenizer import write_tokenizer_folder

USER = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatBody:
    return parse_body(orjson.dumps({"messages": USER, **fields}), ChatBody)


def refused(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        chat(**fields)
    return caught.value


def test_defaults() -> None:
    body = chat()
    sampling = sampling_of(body, vocab_size=10)
    assert (sampling.temperature, sampling.top_p, sampling.logprobs) == (1.0, 1.0, None)
    stop = stop_of(body, max_tokens=7, eos_ids=(3,), vocab_size=10)
    assert (stop.max_tokens, stop.token_ids, stop.strings) == (7, (3,), ())
    assert options_of(body.tandem).mode is Mode.AUTO
    assert not body.wants_usage()


def test_newer_limit_wins() -> None:
    assert chat(max_tokens=5, max_completion_tokens=9).answer_limit() == 9
    assert chat(max_tokens=5).answer_limit() == 5
    assert chat().answer_limit() is None


def test_stop_ids_and_ignored_eos() -> None:
    body = chat(stop_token_ids=[4, 1], stop="x")
    assert stop_of(body, max_tokens=7, eos_ids=(3,), vocab_size=10).token_ids == (1, 3, 4)
    body = chat(ignore_eos=True, min_tokens=9)
    stop = stop_of(body, max_tokens=7, eos_ids=(3,), vocab_size=10)
    assert (stop.token_ids, stop.min_tokens) == ((), 7)


def test_stop_may_be_null() -> None:
    assert chat(stop=None).stop is None
    assert refused(stop=["x"] * 17).param == "stop"


@pytest.mark.parametrize("key", ["0" * 5_000 + "3", "3"])
def test_a_biased_id_may_have_leading_zeros(key: str) -> None:
    assert sampling_of(chat(logit_bias={key: 1.5}), vocab_size=10).logit_bias == ((3, 1.5),)


@pytest.mark.parametrize("key", ["9" * 5_000, "0" * 30 + "10", "10", "-1", "\u0663"])
def test_a_biased_id_must_be_one(key: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        sampling_of(chat(logit_bias={key: 1.5}), vocab_size=10)
    assert caught.value.param == "logit_bias"


def test_recent_pages_alone_are_left_to_the_workers_budget() -> None:
    options = options_of(chat(tandem={"recency_pages": 2**31 - 1}).tandem)
    assert (options.page_budget, options.recency_pages) == (None, 2**31 - 1)
    error = refused(tandem={"page_budget": 4, "recency_pages": 3})
    assert error.param == "tandem.page_budget"
    assert "page_budget is 4, too small beside 3" in error.message


def test_options() -> None:
    body = chat(tandem={"mode": "prune", "keep_rate": 0.7, "min_keep": 0, "page_budget": 8})
    options = options_of(body.tandem)
    assert (options.mode, options.keep_rate, options.min_keep) == (Mode.PRUNE, 0.7, 0)
    assert (options.page_budget, options.recency_pages) == (8, None)


def test_page_options() -> None:
    given = {"page_policy": "delta", "page_layout": "segment", "page_heads": "kv_head"}
    options = options_of(chat(tandem={**given, "page_refresh": 2, "page_mass": 1}).tandem)
    assert options.page_policy is PagePolicyName.DELTA
    assert (options.page_layout, options.page_heads) == (PageLayout.SEGMENT, PageHeads.KV_HEAD)
    assert (options.page_refresh, options.page_mass) == (2, 1.0)
    nothing = options_of(chat(tandem=dict.fromkeys(given)).tandem)
    assert (nothing.page_policy, nothing.page_layout, nothing.page_heads) == (None, None, None)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("page_policy", "dleta", "'quest_shared', 'raas'"),
        ("page_policy", 3, "'dense', 'delta'"),
        ("page_layout", "boards", "'board' or 'segment'"),
        ("page_heads", True, "'shared' or 'kv_head'"),
        ("page_refresh", 0, "greater than or equal to 1"),
        ("page_refresh", 1.5, "valid integer"),
        ("page_refresh", True, "valid integer"),
        ("page_mass", 0, "greater than 0"),
        ("page_mass", "0.5", "valid number"),
    ],
)
def test_bad_page_options_are_named(field: str, value: object, says: str) -> None:
    error = refused(tandem={field: value})
    assert error.param == f"tandem.{field}"
    assert says in error.message


def test_a_misspelt_page_option_is_hinted_at() -> None:
    body = {"messages": USER, "tandem": {"page_polcy": "quest"}}
    found = check_unknown(parse_body(orjson.dumps(body), ChatBody), strict=False)
    assert "page_policy" in str(found)


def test_selection_options() -> None:
    tandem = {
        "protect": [[0, 20], "system", [30, 31], "question"],
        "window": 16,
        "mass": 0.9,
        "min_rate": 0.1,
        "max_rate": 0.4,
    }
    options, asked = options_of(chat(tandem=tandem).tandem), parts_of(chat(tandem=tandem).tandem)
    assert options.protect == (TokenRange(0, 20), TokenRange(30, 31))
    assert asked.protect == (PromptPart.SYSTEM, PromptPart.QUESTION)
    assert (options.observation_window, asked.question_window) == (16, False)
    assert (options.mass, options.min_rate, options.max_rate) == (0.9, 0.1, 0.4)


def test_question_window_is_left_to_the_conversation() -> None:
    tandem = chat(tandem={"window": "question"}).tandem
    assert options_of(tandem).observation_window is None
    assert parts_of(tandem) == AskedParts(question_window=True)
    assert not parts_of(None).anything


@pytest.mark.parametrize(
    ("tandem", "param"),
    [
        ({"protect": ["everything"]}, "tandem.protect"),
        ({"protect": [[1]]}, "tandem.protect"),
        ({"protect": [[1, 2.0]]}, "tandem.protect"),
        ({"protect": [[0, True]]}, "tandem.protect"),
        ({"protect": [{}]}, "tandem.protect"),
        ({"protect": [[4, 2]]}, "tandem.protect"),
        ({"protect": "system"}, "tandem.protect"),
        ({"mass": 0.5, "keep_rate": 0.5}, "tandem.mass"),
        ({"mass": 0}, "tandem.mass"),
        ({"min_rate": 0.6, "max_rate": 0.5}, "tandem.min_rate"),
        ({"window": 100_000}, "tandem.window"),
        ({"window": "answer"}, "tandem.window"),
        ({"window": True}, "tandem.window"),
    ],
)
def test_selection_options_out_of_range(tandem: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        options_of(chat(tandem=tandem).tandem)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"audio": {}, "prediction": {"type": "content"}}, "prediction"),
        ({"web_search_options": {"a": 1}}, "web_search_options"),
    ],
)
def test_unsupported(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert (error.param, error.error_code) == (param, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": ["custom"]}}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b"}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 1}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [{"type": "custom"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools.0.function.parameters",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}
                ]
            },
            "tools.0.function.parameters",
        ),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_malformed_formats_and_tools(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_content_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    body = chat(messages=[{"role": "user", "content": parts, "extra": 1}])
    assert body.messages[0].for_template() == {"role": "user", "content": "ab"}
    assert refused(messages=[{"role": "user", "content": [{"type": "text"}]}]).param


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ("", {}),
        ('{"a": "\\u00e9"}', {"a": "é"}),
        ('{"id": 123456789012345678901}', {"id": 123456789012345678901}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ('{"a": "\\ud800"}', '{"a": "\\ud800"}'),
        ('{"a":' * 3000 + "1" + "}" * 3000, '{"a":' * 3000 + "1" + "}" * 3000),
    ],
    ids=["empty", "object", "long number", "cut off", "no object", "half a pair", "deep"],
)
def test_arguments_of_an_earlier_call_reach_the_template(arguments: str, seen: object) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    body = chat(messages=[{"role": "assistant", "tool_calls": [call]}])
    (printed,) = body.messages[0].for_template()["tool_calls"]
    assert printed["function"] == {"name": "f", "arguments": seen}


def test_template_variables_are_a_closed_list() -> None:
    body = chat(
        chat_template_kwargs={"enable_thinking": False, "messages": []}, reasoning_effort="low"
    )
    assert body.template_variables() == {"enable_thinking": False, "reasoning_effort": "low"}
    headers = check_unknown(body, strict=False)
    assert headers == {"x-ignored-params": "chat_template_kwargs.messages"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_token", "max_tokens"),
        ("temperatrue", "temperature"),
        ("topp_p", "top_p"),
        ("frobnicate", None),
        ("nn", None),
    ],
)
def test_hints(name: str, near: str | None) -> None:
    headers = check_unknown(chat(**{name: 1}), strict=False)
    assert headers["x-ignored-params"] == name
    assert headers.get("x-param-hint") == (f"{name} -> {near}" if near else None)


def test_strict_names_the_field() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean max_tokens"):
        check_unknown(chat(max_token=1), strict=True)
    with pytest.raises(InvalidRequestError, match="remove it"):
        check_unknown(chat(frobnicate=1), strict=True)
    assert check_unknown(chat(user="u"), strict=True) == {}


def test_many_unknown_names_stay_bounded() -> None:
    headers = check_unknown(chat(**{f"unknown_{i}" * 30: i for i in range(500)}), strict=False)
    assert all(len(value) < 3000 for value in headers.values())


@pytest.mark.parametrize("depth", [300, 700, 1_000])
@pytest.mark.parametrize(
    "field",
    sorted({*TandemOptions.model_fields, *ChatBody.model_fields} - {"model", "tandem"}),
)
def test_a_value_of_any_depth_ends_in_a_body_or_a_refusal(field: str, depth: int) -> None:
    value = "[" * depth + "]" * depth
    inside = f'"tandem":{{"{field}":{value}}}' if field in TandemOptions.model_fields else (
        f'"{field}":{value}'
    )  # fmt: skip
    with contextlib.suppress(InvalidRequestError):
        parse_body(f'{{"messages":[],{inside}}}'.encode(), ChatBody)


@pytest.mark.parametrize("name", ["\\ud800", "a", "\\u00e4"])
def test_what_a_refusal_names_can_be_sent(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(f'{{"{name}": NaN}}'.encode(), ChatBody)
    orjson.dumps({"param": caught.value.param, "message": caught.value.message})


def test_very_many_unknown_names_cost_little() -> None:
    body = chat(**{f"max_tok{i}": i for i in range(50_000)})
    began = time.process_time()
    headers = check_unknown(body, strict=False)
    assert time.process_time() - began < 0.5
    assert headers["x-ignored-params"].count(",") < 16


def test_fit_context() -> None:
    assert fit_context(prompt_tokens=4, asked=None, limit=10, param="prompt") == 6
    assert fit_context(prompt_tokens=4, asked=6, limit=10, param="prompt") == 6
    for prompt, asked in ((4, 7), (10, None)):
        with pytest.raises(ContextLengthError, match="maximum context length is 10 tokens"):
            fit_context(prompt_tokens=prompt, asked=asked, limit=10, param="prompt")


def test_prompt_forms() -> None:
    def prompts(value: Any) -> list[Any]:
        found = parse_body(orjson.dumps({"prompt": value}), CompletionBody).prompt
        return [each if isinstance(each, str) else list(each) for each in found]

    assert prompts("a") == ["a"]
    assert prompts([1, 2]) == [[1, 2]]
    assert prompts([[1], "b"]) == [[1], "b"]


def test_unlikely_log_probabilities_are_json(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = Tokenizer.from_folder(write_tokenizer_folder(tmp_path_factory.mktemp("t")))
    tokens = [
        SampledToken(token_id=1, logprob=-math.inf, top=((2, math.nan),)),
        SampledToken(token_id=1, logprob=-0.25),
    ]
    entries = chat_entries(tokens, tokenizer)
    assert entries[0]["logprob"] == entries[0]["top_logprobs"][0]["logprob"] == UNLIKELY
    assert entries[1]["logprob"] == -0.25


def test_report_is_in_milliseconds() -> None:
    report = RequestReport(ttft_s=0.5, phases_s={"prefill": 0.25})
    shown = Finished(
        reason=FinishReason.STOP,
        stop_match=None,
        prompt_tokens=1,
        completion_tokens=1,
        report=report,
    ).report.to_json()
    assert shown["ttft_ms"] == 500.0
    assert shown["phases_ms"] == {"prefill": 250.0}

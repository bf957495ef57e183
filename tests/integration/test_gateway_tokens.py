"""What a prompt becomes, what the server can do, and how busy it is."""

from typing import Any

import pytest

from tests.support.gateway_rig import Rig, until

TEXT = "Grüße, 世界 🎉 and more"
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}]


async def post(rig: Rig, path: str, **body: Any) -> dict[str, Any]:
    response = await rig.http.post(path, json=body)
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"]
    answer: dict[str, Any] = response.json()
    return answer


async def test_there_and_back(rig: Rig) -> None:
    answer = await post(rig, "/tokenize", prompt=TEXT, return_token_strs=True)
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    assert answer["max_model_len"] == 1024
    back = await post(rig, "/detokenize", tokens=answer["tokens"])
    assert back == {"prompt": TEXT}
    assert (await post(rig, "/detokenize", tokens=[]))["prompt"] == ""
    plain = await post(rig, "/tokenize", prompt=TEXT)
    assert plain["token_strs"] is None


async def test_a_conversation_is_tokenized_as_it_would_be_answered(rig: Rig) -> None:
    answer = await post(rig, "/tokenize", messages=MESSAGES)
    used = (await rig.chat(messages=MESSAGES)).json()["usage"]["prompt_tokens"]
    assert answer["count"] == used
    shorter = await post(rig, "/tokenize", messages=MESSAGES, add_generation_prompt=False)
    assert answer["tokens"][: shorter["count"]] == shorter["tokens"]
    assert shorter["count"] < used


async def test_render_shows_the_prompt_of_the_request(rig: Rig) -> None:
    body = {"messages": MESSAGES, "max_tokens": 5, "temperature": 0, "stream": True}
    answer = await post(rig, "/v1/chat/completions/render", **body)
    assert answer["prompt"].endswith(f"{TEXT}<|im_end|>\n<|im_start|>assistant\n")
    assert answer["prompt_tokens"] == len(answer["prompt_token_ids"])
    assert answer["model"] == "simulated"
    again = await post(rig, "/detokenize", tokens=answer["prompt_token_ids"])
    assert again["prompt"] == answer["prompt"]
    assert not rig.simulation.methods("p0"), "nothing runs for it"


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/tokenize", {}, None, "invalid_value"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, None, "invalid_value"),
        ("/tokenize", {"prompt": 5}, "prompt", "invalid_value"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model", "model_not_found"),
        ("/tokenize", {"prompt": "a!" * 200_000}, "prompt", "context_length_exceeded"),
        ("/detokenize", {}, "tokens", "missing_required_parameter"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0", "invalid_value"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0", "invalid_value"),
        ("/detokenize", {"tokens": [2**31]}, "tokens", "invalid_value"),
        ("/detokenize", {"tokens": [2**40]}, "tokens.0", "invalid_value"),
        ("/v1/chat/completions/render", {}, "messages", "missing_required_parameter"),
        (
            "/v1/chat/completions/render",
            {"messages": MESSAGES, "temperature": 5},
            "temperature",
            "invalid_value",
        ),
    ],
)
async def test_refusals(
    rig: Rig, path: str, body: dict[str, Any], param: str | None, code: str
) -> None:
    response = await rig.http.post(path, json=body)
    assert response.status_code == (404 if code == "model_not_found" else 400)
    error = response.json()["error"]
    assert (error["param"] or None, error["code"]) == (param, code)


async def test_unknown_fields_are_named(rig: Rig) -> None:
    response = await rig.http.post("/tokenize", json={"prompt": "a", "add_special_token": True})
    assert response.headers["x-ignored-params"] == "add_special_token"
    assert response.headers["x-param-hint"] == "add_special_token -> add_special_tokens"


async def test_props_tell_limits_and_template(rig: Rig) -> None:
    body = (await rig.http.get("/props")).json()
    assert body["model"] == "simulated"
    assert body["max_model_len"] == 1024
    assert body["vocab_size"] == rig.simulation.tokenizer.vocab_size
    assert body["chat_template"]["available"] is True
    assert body["limits"]["max_choices"] == 16
    assert body["limits"]["max_body_bytes"] == 8 * 1024 * 1024
    assert body["strict_params"] is False


async def test_load_counts_what_runs(rig: Rig) -> None:
    idle = (await rig.http.get("/load")).json()
    assert (idle["server_load"], idle["queued_prompt_tokens"]) == (0, 0)
    rig.simulation.token_delay_s = 0.2
    async with rig.http.stream(
        "POST", "/v1/completions", json={"prompt": "hi", "stream": True}
    ) as response:
        async for _ in response.aiter_lines():
            break
        assert (await rig.http.get("/load")).json()["server_load"] == 1

    async def at_rest() -> bool:
        load: dict[str, Any] = (await rig.http.get("/load")).json()
        return bool(load["server_load"] == 0)

    await until(at_rest)

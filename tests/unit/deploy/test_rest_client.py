import json

import httpx
import pytest

from deploy.rest_client import served_models, stream_chat
from shared.errors import InvalidRequestError, TandemError, TransportError, UnavailableError


def chunk(text="", finish=None, **more):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return json.dumps({"choices": [choice], **more})


def client_of(*frames, status=200, body=None):
    text = body if body is not None else ": ping\n\n".join(f"data: {f}\n\n" for f in frames)
    transport = httpx.MockTransport(lambda _: httpx.Response(status, text=text))
    return httpx.Client(base_url="http://gateway", transport=transport)


def ask(client):
    heard: list[str] = []
    return stream_chat(client, {"model": "m"}, on_text=heard.append), heard


def test_pieces_usage_and_report_are_collected():
    last = json.dumps(
        {"choices": [], "usage": {"completion_tokens": 2}, "tandem": {"kept_tokens": 3}}
    )
    frames = (chunk("Hel"), chunk("lo"), chunk(finish="stop"), last, "[DONE]")
    answer, heard = ask(client_of(*frames))
    assert answer.text == "Hello"
    assert heard == ["Hel", "lo"]
    assert answer.finish_reason == "stop"
    assert answer.usage == {"completion_tokens": 2}
    assert answer.report == {"kept_tokens": 3}
    assert 0 <= answer.ttft_s <= answer.seconds


def test_an_error_frame_keeps_its_code():
    frame = json.dumps({"error": {"message": "gone", "code": "kv_transfer_failed"}})
    with pytest.raises(TandemError, match="gone") as caught:
        ask(client_of(chunk("a"), frame))
    assert caught.value.error_code == "kv_transfer_failed"


def test_a_stream_that_just_ends_is_an_error():
    with pytest.raises(TransportError, match="finish reason"):
        ask(client_of(chunk("a")))


def test_a_refusal_names_status_and_code():
    body = json.dumps({"error": {"message": "too long", "code": "context_length_exceeded"}})
    with pytest.raises(InvalidRequestError, match="status 400, code context_length_exceeded"):
        ask(client_of(status=400, body=body))


def test_a_foreign_server_is_told_apart():
    with pytest.raises(UnavailableError, match="is the URL a Tandem gateway"):
        ask(client_of(status=404, body="<html>"))


def test_nobody_there_says_what_to_do():
    def refuse(request):
        raise httpx.ConnectError("refused")

    client = httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(refuse))
    with pytest.raises(UnavailableError, match="tandem up"):
        ask(client)
    with pytest.raises(UnavailableError, match="tandem up"):
        served_models(client)


def test_models_are_listed():
    body = json.dumps({"data": [{"id": "a"}, {"id": "b"}]})
    assert served_models(client_of(body=body)) == ["a", "b"]


def test_a_frame_that_is_no_json_is_named():
    with pytest.raises(TransportError, match="no JSON"):
        ask(client_of("hello"))


def test_a_refused_key_names_where_the_commands_take_theirs_from():
    body = json.dumps({"error": {"message": "no key", "code": "invalid_api_key"}})
    with pytest.raises(InvalidRequestError, match="TANDEM_API_KEY") as caught:
        served_models(client_of(status=401, body=body))
    assert caught.value.error_code == "invalid_api_key"

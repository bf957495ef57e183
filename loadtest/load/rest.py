"""REST: one connection a request, made after its clock has started, read line by line."""

from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any

import gevent
import orjson
from geventhttpclient import HTTPClient
from geventhttpclient.response import HTTPSocketPoolResponse

from loadtest.load.chunks import note_frame
from loadtest.load.dialogue import Dialogue
from loadtest.load.exchange import Exchange
from loadtest.load.outcome import Failure
from loadtest.load.overrides import NO_OVERRIDES, Overrides
from loadtest.load.prompts import Prompt
from loadtest.load.rest_dialogue import dialogue_body
from loadtest.load.settings import Api
from loadtest.load.sse import SseReader
from shared.errors import UnavailableError

_HTTP_OK = 200
_CONTROL_S = 60.0
_ERROR_BYTES = 2_000


class Left(BaseException):
    """The client goes on purpose."""


class RestClient:
    """Streams completions.

    Args:
        url: of the server.
        api: completions or chat.
        model: served model.
        timeout_s: longest time of a request.
        overrides: of the profile, in every request.
        api_key: bearer token; empty: none.
    """

    def __init__(
        self,
        url: str,
        *,
        api: Api,
        model: str,
        timeout_s: float,
        overrides: Overrides = NO_OVERRIDES,
        api_key: str = "",
    ) -> None:
        self._url = url
        self._chat = api is Api.CHAT
        self._model = model
        self._timeout_s = timeout_s
        self._overrides = overrides.to_json()
        self._headers = headers_of(api_key)
        self._path = "/v1/chat/completions" if self._chat else "/v1/completions"

    def prepared(self, prompt: Prompt, answer_tokens: int) -> Callable[[Exchange], None]:
        """Encodes a request's body."""
        asked: dict[str, Any] = (
            {"messages": [{"role": "user", "content": prompt.text}]}
            if self._chat
            else {"prompt": prompt.token_ids}
        )
        return self._sender(asked | {"ignore_eos": True}, answer_tokens)

    def prepared_dialogue(
        self, dialogue: Dialogue, answer_tokens: int
    ) -> Callable[[Exchange], None]:
        """Encodes the body of a conversation's next turn."""
        return self._sender(dialogue_body(dialogue), answer_tokens)

    def _sender(self, asked: Mapping[str, Any], answer_tokens: int) -> Callable[[Exchange], None]:
        overrides = {"tandem": self._overrides} if self._overrides else {}
        body = orjson.dumps(
            {
                "model": self._model,
                **asked,
                **overrides,
                "max_tokens": answer_tokens,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        return lambda exchange: self._ask(body, exchange)

    def _ask(self, body: bytes, exchange: Exchange) -> None:
        kind = exchange.ticket.request.kind
        exchange.begin()
        client = HTTPClient.from_url(
            self._url, connection_timeout=self._timeout_s, network_timeout=self._timeout_s
        )
        leave = gevent.Timeout(kind.leave_after_s, Left)
        over = gevent.Timeout(self._timeout_s, TimeoutError)
        answered = False
        try:
            with over, leave:
                response = client.post(self._path, body=body, headers=self._headers)
                answered = True
                self._read(response, exchange, pause_s=kind.pause_s)
        except Left:
            exchange.leave()
        except TimeoutError as error:
            exchange.fail(Failure.TIMEOUT, repr(error))
        except (OSError, HTTPException, ValueError) as error:
            exchange.fail(Failure.TRUNCATED if answered else Failure.CONNECT, repr(error))
        finally:
            exchange.end()
            client.close()

    def _read(
        self, response: HTTPSocketPoolResponse, exchange: Exchange, *, pause_s: float
    ) -> None:
        if response.status_code != _HTTP_OK:
            said = bytes(response.read(_ERROR_BYTES)).decode(errors="replace")
            exchange.fail(f"http_{response.status_code}", said)
            return
        reader = SseReader()
        while line := response.readline(b"\n"):
            for data in reader.feed(bytes(line)):
                note_frame(data, exchange)
                if pause_s:
                    gevent.sleep(pause_s)


def rest_json(
    url: str, path: str, *, api_key: str, body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON that a server answers, to GET or, with a body, to POST.

    Raises:
        UnavailableError: it cannot be reached, or refuses.
    """
    client = HTTPClient.from_url(url, connection_timeout=_CONTROL_S, network_timeout=_CONTROL_S)
    try:
        if body is None:
            response = client.get(path, headers=headers_of(api_key))
        else:
            response = client.post(path, body=orjson.dumps(body), headers=headers_of(api_key))
        said = bytes(response.read())
        status = response.status_code
    except OSError as error:
        raise UnavailableError(
            f"{url} cannot be reached ({error}): the server is down or elsewhere; start it, or "
            "give its --host"
        ) from error
    finally:
        client.close()
    if status != _HTTP_OK:
        raise UnavailableError(
            f"{url}{path} answered {status}: {said[:_ERROR_BYTES].decode(errors='replace')}; a "
            "load run needs this route of a Tandem gateway; see the server's log"
        )
    found: dict[str, Any] = orjson.loads(said)
    return found


def headers_of(api_key: str) -> dict[str, str]:
    """Headers of every request."""
    bearer = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return {"content-type": "application/json", "accept": "text/event-stream", **bearer}

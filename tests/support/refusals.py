"""What the gateway refuses or fails at, as a table, for clients to be measured against."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.keys.file import write_keys
from gateway.keys.record import KeyRecord, hash_of, new_secret, utc_now
from gateway.principal import KeyLimits
from shared.errors import HandoffError, InternalError, OverloadedError, UnavailableError
from tests.support.gateway_rig import Rig, running_rig
from tests.support.simulated_workers import FailEvent


def _nothing(_rig: Rig) -> None:
    """The gateway refuses by itself."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """One row: a request and what becomes of it."""

    name: str
    """As a test id."""
    status: int
    """Of HTTP."""
    kind: str = "invalid_request_error"
    """`type` of the error."""
    code: str
    """`code` of the error."""
    fields: dict[str, Any] = field(default_factory=dict)
    """What the request has beside one short message."""
    messages: tuple[dict[str, str], ...] = ({"role": "user", "content": "hi"},)
    """The conversation."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the gateway."""
    plan: Callable[[Rig], None] = _nothing
    """Makes the workers fail."""
    key: str = "user"
    """Whose API key."""
    retried: bool = False
    """Whether another try makes sense."""


_LONG = ({"role": "user", "content": "x! " * 2000},)
_SCHEMA = {"name": "a", "schema": {"not": {}}}
_TOOL = {"type": "function", "function": {"name": "f"}}

REFUSALS = (
    Refusal(name="range", status=400, code="invalid_value", fields={"temperature": 9}),
    Refusal(
        name="answer too long",
        status=400,
        code="context_length_exceeded",
        fields={"max_tokens": 5000},
    ),
    Refusal(name="prompt too long", status=400, code="context_length_exceeded", messages=_LONG),
    Refusal(
        name="schema",
        status=400,
        code="invalid_json_schema",
        fields={"response_format": {"type": "json_schema", "json_schema": _SCHEMA}},
    ),
    Refusal(name="tools", status=400, code="tool_parser_missing", fields={"tools": [_TOOL]}),
    Refusal(
        name="body",
        status=413,
        code="request_too_large",
        messages=_LONG,
        settings={"max_body_bytes": 1000},
    ),
    Refusal(
        name="key", status=401, kind="authentication_error", code="invalid_api_key", key="none"
    ),
    Refusal(name="model", status=404, code="model_not_found", fields={"model": "other"}),
    Refusal(
        name="limit of one request",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        key="tiny",
    ),
    Refusal(
        name="queue",
        status=429,
        kind="overloaded_error",
        code="queue_full",
        plan=lambda rig: rig.prefills[0].plan.at(
            "call", OverloadedError("the queue is full", retry_after_s=0.01), times=99
        ),
        retried=True,
    ),
    Refusal(
        name="defect",
        status=500,
        kind="server_error",
        code="internal_error",
        plan=lambda rig: rig.prefills[0].plan.at("call", InternalError("secret"), times=99),
        retried=True,
    ),
    Refusal(
        name="transfer",
        status=502,
        kind="server_error",
        code="kv_transfer_failed",
        plan=lambda rig: rig.prefills[0].plan.at(
            "started", FailEvent(HandoffError("checksum differs")), times=99
        ),
        retried=True,
    ),
    Refusal(
        name="no worker",
        status=503,
        kind="server_error",
        code="no_prefill_worker",
        plan=lambda rig: rig.prefills[0].plan.at("call", UnavailableError("stopping"), times=99),
        retried=True,
    ),
    Refusal(
        name="deadline",
        status=504,
        kind="timeout_error",
        code="deadline_exceeded",
        settings={"request_timeout_s": 0.2},
        plan=lambda rig: rig.prefills[0].plan.at("started", 5.0, times=99),
    ),
)


@dataclass(frozen=True)
class Refusing:
    """A gateway that will refuse, and the key to come with."""

    rig: Rig
    api_key: str

    @property
    def url(self) -> str:
        """Base of the REST API, as clients want it."""
        return f"{self.rig.url}/v1"


@asynccontextmanager
async def refusing(refusal: Refusal, *, folder: Path, scratch: Path) -> AsyncIterator[Refusing]:
    """Starts a gateway with API keys before workers that fail as planned.

    Args:
        refusal: the row.
        folder: tokenizer of the gateway.
        scratch: an empty folder for the key file.
    """
    secrets = {"none": new_secret("none")}
    records = {}
    for key_id, limits in (("user", KeyLimits()), ("tiny", KeyLimits(tokens_per_minute=1))):
        secrets[key_id] = secret = new_secret(key_id)
        records[key_id] = KeyRecord(
            key_id=key_id, sha256=hash_of(secret), created=utc_now(), limits=limits
        )
    keys = scratch / "keys.json"
    write_keys(keys, records)
    # Every client shall meet the same failure, so that no worker is left alone after some.
    settings = {"breaker_failures": 1000} | refusal.settings
    async with running_rig(folder, api_keys=keys, **settings) as rig:
        refusal.plan(rig)
        yield Refusing(rig, secrets[refusal.key])

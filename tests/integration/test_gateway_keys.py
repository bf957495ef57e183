"""API keys and TLS at a running gateway, with real clients."""

import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import grpc.aio
import httpx
import openai
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.keys.file import read_keys, write_keys
from gateway.keys.record import KeyRecord, hash_of, new_secret, utc_now
from protos.tandem.v1 import common_pb2, inference_pb2, inference_pb2_grpc
from shared.errors import AuthenticationError
from shared.rpc.status import error_from_rpc
from tests.support.gateway_rig import DEFAULT_ANSWER, Rig, running_rig
from tests.support.tls_files import Authority

HELLO = inference_pb2.GenerateRequest(text="hi", sampling=common_pb2.SamplingParams(temperature=0))


class Keys:
    """A key file and its secrets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.user = self.add("user")
        self.admin = self.add("operator", admin=True)
        self.old = self.add("old", expires=utc_now() - timedelta(hours=1))

    def add(self, key_id: str, **fields) -> str:
        records = read_keys(self.path) if self.path.exists() else {}
        secret = new_secret(key_id)
        records[key_id] = KeyRecord(
            key_id=key_id, sha256=hash_of(secret), created=utc_now(), **fields
        )
        write_keys(self.path, records)
        return secret

    def revoke(self, key_id: str) -> None:
        records = read_keys(self.path)
        del records[key_id]
        write_keys(self.path, records)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys.json")


@pytest.fixture
async def rig(folder: Path, keys: Keys) -> AsyncIterator[Rig]:
    async with running_rig(folder, api_keys=keys.path) as started:
        yield started


async def test_no_key_a_wrong_one_and_an_expired_one_are_401(rig: Rig, keys: Keys) -> None:
    for headers in ({}, bearer(new_secret("user")), bearer(keys.old), {"authorization": "x"}):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/models"),
            ("GET", "/version"),
            ("GET", "/metrics"),
            ("GET", "/nothing/here"),
        ):
            answer = await rig.http.request(method, path, headers=headers)
            assert answer.status_code == 401, path
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["x-request-id"]
    metrics = (await rig.http.get("/metrics", headers=bearer(keys.admin))).text
    assert 'reason="invalid_api_key"' in metrics


async def test_openai_clients_get_in_and_know_their_error(rig: Rig, keys: Keys) -> None:
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key=keys.user) as client:
        answer = await client.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": "hi"}]
        )
        assert answer.choices[0].message.content == DEFAULT_ANSWER
    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            await client.models.list()
        assert caught.value.code == "invalid_api_key"


async def test_probes_need_no_key_and_tell_strangers_no_names(rig: Rig, keys: Keys) -> None:
    for path in ("/health", "/health/live", "/health/ready", "/healthz"):
        for headers in ({}, bearer("wrong")):
            answer = await rig.http.get(path, headers=headers)
            assert answer.status_code == 200
            assert "workers" not in answer.json()
    details = await rig.http.get("/health", headers=bearer(keys.admin))
    assert details.json()["workers"]


async def test_what_is_for_operators_needs_an_admin_key(rig: Rig, keys: Keys) -> None:
    for path in ("/metrics", "/admin/workers"):
        refused = await rig.http.get(path, headers=bearer(keys.user))
        assert refused.status_code == 403
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("permission_error", "permission_denied")
        assert (await rig.http.get(path, headers=bearer(keys.admin))).status_code == 200
    async with httpx.AsyncClient(base_url=f"http://{rig.gateway.admin_address}") as admin:
        assert (await admin.get("/metrics")).status_code == 200


async def test_new_and_revoked_keys_count_without_a_restart(rig: Rig, keys: Keys) -> None:
    added = keys.add("added")
    assert (await rig.http.get("/v1/models", headers=bearer(added))).status_code == 200
    keys.revoke("added")
    assert (await rig.http.get("/v1/models", headers=bearer(added))).status_code == 401
    assert (await rig.http.get("/v1/models", headers=bearer(keys.user))).status_code == 200


async def generate(channel: grpc.aio.Channel, secret: str | None) -> str:
    """The streamed text over gRPC."""
    metadata = None if secret is None else (("authorization", f"Bearer {secret}"),)
    stub = inference_pb2_grpc.InferenceServiceStub(channel)
    return "".join([r.delta.text async for r in stub.Generate(HELLO, metadata=metadata)])


async def test_grpc_asks_for_the_same_keys(rig: Rig, keys: Keys) -> None:
    async with grpc.aio.insecure_channel(rig.gateway.grpc_address) as channel:
        assert await generate(channel, keys.user) == DEFAULT_ANSWER
        for wrong in (None, keys.old, "wrong"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(channel, wrong)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert isinstance(error_from_rpc(caught.value), AuthenticationError)
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_tls_at_both_ports_renewed_while_it_runs(folder: Path, tmp_path: Path) -> None:
    first, second = Authority(), Authority()
    own = first.issue(tmp_path)
    async with running_rig(folder, tls_cert=own.cert, tls_key=own.key) as rig:
        for authority in (first, second):
            authority.issue(tmp_path)
            context = ssl.create_default_context(cadata=authority.pem.decode())
            base = f"https://{rig.gateway.rest_address}"
            async with httpx.AsyncClient(base_url=base, verify=context) as client:
                answer = await client.post(
                    "/v1/completions", json={"prompt": "hi", "max_tokens": 64}
                )
                assert answer.json()["choices"][0]["text"] == DEFAULT_ANSWER
            credentials = grpc.ssl_channel_credentials(authority.pem)
            async with grpc.aio.secure_channel(
                rig.gateway.grpc_address,
                credentials,
                options=[("grpc.use_local_subchannel_pool", 1)],
            ) as channel:
                assert await generate(channel, None) == DEFAULT_ANSWER
        with pytest.raises(httpx.TransportError):
            await rig.http.get("/health")  # plain text


async def test_a_worker_at_a_refused_address_is_not_asked(folder: Path) -> None:
    async with running_rig(folder, worker_networks=("10.0.0.0/8",)) as rig:
        answer = await rig.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_prefill_worker")
        assert rig.methods(rig.prefills[0]) == []

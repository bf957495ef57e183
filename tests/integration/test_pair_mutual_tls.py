"""A gateway and a pair that speak mutual TLS with each other, all real."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest

from decode_service.app import DecodeServer
from decode_service.config import DecodeConfig
from gateway.app import Gateway
from gateway.config import GatewayConfig
from prefill_service.app import PrefillApp
from prefill_service.config import PrefillConfig
from protos.tandem.v1 import decode_pb2, decode_pb2_grpc
from shared.rpc.channel import open_channel
from shared.rpc.tls import PeerTls
from shared.telemetry.certificates import Certificates, TlsFiles
from tests.support.decode_server import local_prefill, write_profile
from tests.support.gateway_rig import until
from tests.support.tls_files import Authority, Identity


def role_files(identity: Identity, prefix: str = "tls") -> dict[str, Any]:
    files = {"cert": identity.cert, "key": identity.key, "ca": identity.ca}
    return {f"{prefix}_{name}": path for name, path in files.items()}


@pytest.fixture
def authority() -> Authority:
    return Authority()


@asynccontextmanager
async def running(
    model: Path, folder: Path, authority: Authority, *, reads: int = 0
) -> AsyncIterator[tuple[DecodeServer, httpx.AsyncClient]]:
    """The three roles; each has its own certificate in `folder`.

    The decode worker reads prompts of up to `reads` tokens itself.
    """
    common: dict[str, Any] = {"port": 0, "admin_port": 0, "model": str(model)}
    common["profile"] = str(write_profile(folder))
    shown = role_files(authority.issue(folder / "decode"))
    config = DecodeConfig(**common, **shown, local_prefill_tokens=reads)
    decode = DecodeServer(config, local=local_prefill(config))
    own = role_files(authority.issue(folder / "prefill"))
    prefill = PrefillApp(PrefillConfig(**common, **own))
    gateway: Gateway | None = None
    try:
        await decode.start()
        await prefill.start()
        gateway = Gateway(
            GatewayConfig(
                port=0,
                grpc_port=0,
                admin_port=0,
                model_dir=str(model),
                prefill_workers=(prefill.address,),
                decode_workers=(decode.address,),
                poll_interval_s=0.1,
                drain_timeout_s=1.0,
                **role_files(authority.issue(folder / "gateway"), prefix="worker_tls"),
            )
        )
        await gateway.start()
        base = f"http://{gateway.rest_address}"
        async with httpx.AsyncClient(base_url=base, timeout=30.0) as http:
            yield decode, http
    finally:
        if gateway is not None:
            await gateway.close()
        await prefill.close()
        await decode.stop()


async def answer(http: httpx.AsyncClient) -> str:
    body = {"prompt": "a b c d", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    reply = await http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] == 6
    text: str = reply.json()["choices"][0]["text"]
    return text


async def test_requests_pass_and_go_on_passing_while_certificates_are_renewed(
    tiny_model_dir: Path, tmp_path: Path, authority: Authority
) -> None:
    async with running(tiny_model_dir, tmp_path, authority) as (_decode, http):
        first = await answer(http)
        for role in ("decode", "prefill", "gateway"):
            authority.issue(tmp_path / role)
            assert await answer(http) == first


async def test_a_worker_that_reads_prompts_itself_shows_itself_its_certificate(
    tiny_model_dir: Path, tmp_path: Path, authority: Authority
) -> None:
    async with running(tiny_model_dir, tmp_path, authority, reads=64) as (_decode, http):
        body = {"prompt": "a b c d", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
        reply = (await http.post("/v1/completions", json=body)).json()
        assert reply["tandem"]["route"].startswith("local: ")
        assert reply["tandem"]["transport"] == "loopback"


async def test_strangers_reach_neither_control_nor_data(
    tiny_model_dir: Path, tmp_path: Path, authority: Authority
) -> None:
    async with running(tiny_model_dir, tmp_path, authority) as (decode, http):
        foreign = Authority().issue(tmp_path / "stranger")
        files = TlsFiles(cert=foreign.cert, key=foreign.key, ca=authority.issue(tmp_path / "x").ca)
        stranger = PeerTls(certificates=Certificates(files))
        for tls in (None, stranger):
            async with open_channel(decode.address, own_connection=True, tls=tls) as channel:
                stub = decode_pb2_grpc.DecodeServiceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.Reserve(decode_pb2.ReserveRequest(), timeout=10.0)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert decode.core.worker.table.idle
        await answer(http)


async def test_a_gateway_of_another_authority_finds_no_workers(
    tiny_model_dir: Path, tmp_path: Path, authority: Authority
) -> None:
    async with running(tiny_model_dir, tmp_path, authority) as (_decode, http):
        Authority().issue(tmp_path / "gateway")

        async def refused() -> bool:
            return (await http.get("/health/ready")).status_code == 503

        await until(refused)

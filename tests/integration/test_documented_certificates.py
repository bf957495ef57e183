"""The certificates that the README makes with OpenSSL work for mutual TLS."""

import re
import subprocess
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shared.rpc.channel import open_channel
from shared.rpc.server import build_server
from shared.rpc.tls import PeerTls
from shared.telemetry.certificates import Certificates, TlsFiles

ROOT = Path(__file__).resolve().parents[2]


def documented_commands() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks: list[str] = re.findall(r"```sh\n(openssl req -x509.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 1, "one block of commands"
    return blocks[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the commands ran."""
    command = ["sh", "-ec", documented_commands()]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return tmp_path


async def test_the_documented_commands_make_working_identities(folder: Path) -> None:
    own = {
        role: Certificates(
            TlsFiles(cert=folder / f"{role}.pem", key=folder / f"{role}.key", ca=folder / "ca.pem")
        )
        for role in ("gateway", "prefill", "decode")
    }
    server = build_server(host="127.0.0.1", port=0, service_names=(), certificates=own["decode"])
    await server.start()
    try:
        for role, name in (("gateway", ""), ("prefill", "worker.tandem.internal")):
            tls = PeerTls(certificates=own[role], name=name)
            async with open_channel(server.address, own_connection=True, tls=tls) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest(service="liveness")
                answer = await stub.Check(request, timeout=10.0)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        await server.stop()

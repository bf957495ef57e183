"""`tandem health`: asks one role whether it is ready; the health check of containers."""

import json

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.settings import load_role
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.errors import ConfigError
from shared.telemetry.ports import join_address

_DEFAULT_ADDRESSES = {
    "gateway": "127.0.0.1:8000",
    "prefill": "127.0.0.1:8101",
    "decode": "127.0.0.1:8201",
}


def run_health(*, role: str, address: str, timeout_s: float, as_json: bool) -> int:
    """Prints the answer; returns 0 when the role is ready, 1 when it is not.

    Raises:
        ConfigError: no such role.
    """
    if role not in _DEFAULT_ADDRESSES:
        raise ConfigError(f"unknown role {role!r}: choose one of {', '.join(_DEFAULT_ADDRESSES)}")
    target = address or _DEFAULT_ADDRESSES[role]
    probe = probe_gateway if role == "gateway" else probe_worker
    settings = load_role(role, file=None).value
    if not address and settings.tls_cert is not None:
        # The certificate is for the name that others use, not for loopback: ask the admin page.
        target, probe = join_address(settings.admin_host, settings.admin_port), probe_gateway
    ready, detail = probe(target, timeout_s=timeout_s)
    if as_json:
        print(json.dumps({"role": role, "address": target, "ready": ready, "detail": detail}))
    else:
        print(f"{role} at {target}: {'ready' if ready else 'not ready'} ({detail})")
    return 0 if ready else 1


def probe_gateway(address: str, *, timeout_s: float) -> tuple[bool, str]:
    """Asks /health/ready; returns readiness and the body or the reason."""
    try:
        response = httpx.get(f"http://{address}/health/ready", timeout=timeout_s, trust_env=False)
    except httpx.TransportError as error:
        return False, f"unreachable: {error}"
    return response.status_code == httpx.codes.OK, response.text.strip()


def probe_worker(address: str, *, timeout_s: float) -> tuple[bool, str]:
    """Asks grpc.health.v1; returns readiness and the status, with the profile, or the reason."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            if response.status != health_pb2.HealthCheckResponse.SERVING:
                return False, health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
            control = control_pb2_grpc.ControlServiceStub(channel)
            info = control.GetInfo(control_pb2.GetInfoRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            return False, f"{error.code().name}: {error.details()}"
    return True, f"SERVING, profile {info.profile}"

"""`tandem health`: asks one role whether it is ready; the health check of containers.

Its address comes from the same settings as the role's own, so both move together.
"""

import json
import time

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.settings import ROLE_NAMES, load_role
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.errors import ConfigError
from shared.telemetry.ports import join_address

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104  asked, never bound


def run_health(*, role: str, address: str, timeout_s: float, as_json: bool) -> int:
    """Prints the answer; returns 0 when the role is ready, 1 when it is not.

    Raises:
        ConfigError: no such role, a wrong setting, or a port that only the role itself knows.
    """
    if role not in ROLE_NAMES:
        raise ConfigError(f"unknown role {role!r}: choose one of {', '.join(ROLE_NAMES)}")
    settings = load_role(role, file=None).value
    probe = probe_gateway if role == "gateway" else probe_worker
    if address:
        target = address
    elif settings.tls_cert is not None:
        # The certificate is for the name that others use, not for loopback: ask the admin page.
        target, probe = own_address(settings.admin_host, settings.admin_port), probe_gateway
    else:
        target = own_address(settings.host, settings.port)
    ready, detail = probe(target, timeout_s=timeout_s)
    if as_json:
        print(json.dumps({"role": role, "address": target, "ready": ready, "detail": detail}))
    else:
        print(f"{role} at {target}: {'ready' if ready else 'not ready'} ({detail})")
    return 0 if ready else 1


def own_address(host: str, port: int) -> str:
    """Where a role of this machine, or of this container, is asked.

    Raises:
        ConfigError: port 0, which the system replaced by a free one.
    """
    if port == 0:
        raise ConfigError(
            "the settings leave the port to the system (0); give --address HOST:PORT, which the "
            "role printed when it was ready"
        )
    return join_address(_EVERY_ADDRESS.get(host, host), port)


def probe_gateway(address: str, *, timeout_s: float) -> tuple[bool, str]:
    """Asks /health/ready; returns readiness and the body or the reason."""
    try:
        response = httpx.get(f"http://{address}/health/ready", timeout=timeout_s, trust_env=False)
    except httpx.TransportError as error:
        return False, f"unreachable: {error}"
    return response.status_code == httpx.codes.OK, response.text.strip()


def probe_worker(address: str, *, timeout_s: float) -> tuple[bool, str]:
    """Asks grpc.health.v1; returns readiness and the status, with the profile, or the reason.

    Both calls together take `timeout_s` at most.
    """
    deadline = time.monotonic() + timeout_s
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            response = stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
            if response.status != health_pb2.HealthCheckResponse.SERVING:
                return False, health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
            control = control_pb2_grpc.ControlServiceStub(channel)
            left_s = max(deadline - time.monotonic(), 0.0)
            info = control.GetInfo(control_pb2.GetInfoRequest(), timeout=left_s)
        except grpc.RpcError as error:
            return False, f"{error.code().name}: {error.details()}"
    return True, f"SERVING, profile {info.profile}"

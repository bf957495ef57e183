"""Workers' self-descriptions on the wire."""

from protos.tandem.v1 import control_pb2
from shared.types.worker_info import WorkerInfo
from shared.wire.identity import identity_to_pb
from shared.wire.place import place_to_pb

_ROLES = {"prefill": control_pb2.ROLE_PREFILL, "decode": control_pb2.ROLE_DECODE}
_ROLES_BACK = {value: name for name, value in _ROLES.items()}


def worker_info_to_pb(info: WorkerInfo) -> control_pb2.GetInfoResponse:
    """Converts a self-description."""
    return control_pb2.GetInfoResponse(
        worker_id=info.worker_id,
        incarnation=info.incarnation,
        role=_ROLES[info.role],
        model=identity_to_pb(info.model),
        max_model_len=info.max_model_len,
        version=info.version,
        capabilities=info.capabilities,
        device=info.device,
        attention_backend=info.attention_backend,
        rejected_backends=info.rejected_backends,
        transports=info.transports,
        rejected_transports=info.rejected_transports,
        faults=info.faults,
        profile=info.profile,
        methods_hash=info.methods_hash,
        place=place_to_pb(info.topology),
    )


def worker_role(message: control_pb2.GetInfoResponse) -> str | None:
    """`prefill` or `decode`; None for a gateway, or for a role that this version does not know."""
    return _ROLES_BACK.get(message.role)

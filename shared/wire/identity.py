"""Model identity and handoff names on the wire."""

from protos.tandem.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.types.handoff import HandoffKey
from shared.types.model_identity import ModelIdentity

MAX_ID_LENGTH = 128


def identity_to_pb(identity: ModelIdentity) -> common_pb2.ModelIdentity:
    """Converts an identity."""
    return common_pb2.ModelIdentity(
        name=identity.name,
        model_hash=identity.model_hash,
        dtype=identity.dtype,
        num_layers=identity.num_layers,
        num_kv_heads=identity.num_kv_heads,
        head_dim=identity.head_dim,
        rope=identity.rope,
    )


def identity_from_pb(message: common_pb2.ModelIdentity) -> ModelIdentity:
    """Converts an identity."""
    return ModelIdentity(
        name=message.name,
        model_hash=message.model_hash,
        dtype=message.dtype,
        num_layers=message.num_layers,
        num_kv_heads=message.num_kv_heads,
        head_dim=message.head_dim,
        rope=message.rope,
    )


def handoff_to_pb(key: HandoffKey) -> common_pb2.HandoffKey:
    """Converts a handoff name."""
    return common_pb2.HandoffKey(handoff_id=key.handoff_id, attempt=key.attempt)


def handoff_from_pb(message: common_pb2.HandoffKey) -> HandoffKey:
    """Checks and converts a handoff name.

    Raises:
        InvalidRequestError: empty or overlong id, or attempt 0.
    """
    if not 0 < len(message.handoff_id) <= MAX_ID_LENGTH or message.attempt < 1:
        raise InvalidRequestError(
            f"handoff id must have 1 to {MAX_ID_LENGTH} characters and attempt must be at least 1: "
            "the caller did not name its handoff; set both fields",
            param="handoff",
        )
    return HandoffKey(message.handoff_id, message.attempt)

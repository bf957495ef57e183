"""What a KV cache must agree on to be moved."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelIdentity:
    """Equal on both sides, or the handoff is refused with the differing field named."""

    name: str
    """Served name."""
    model_hash: str
    """SHA-256 over configuration and weights, hex."""
    dtype: str
    """float32, bfloat16 or float16."""
    num_layers: int
    """Decoder layers."""
    num_kv_heads: int
    """KV heads."""
    head_dim: int
    """Head size."""
    rope: str
    """Canonical text of the RoPE parameters."""

    def differences(self, other: "ModelIdentity") -> list[str]:
        """Names and both values of the fields that differ; the served name is allowed to."""
        return [
            f"{f.name}: {getattr(self, f.name)!r} against {getattr(other, f.name)!r}"
            for f in fields(self)
            if f.name != "name" and getattr(self, f.name) != getattr(other, f.name)
        ]

"""Shape of a KV cache and page maths."""

from dataclasses import dataclass

from shared.errors import ConfigError

PAGE_SIZE = 16
"""Tokens in one page of a paged KV cache."""

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` KV slots."""
    return -(-tokens // PAGE_SIZE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """What one token's keys and values look like, in every layer."""

    num_layers: int
    """Decoder layers."""
    num_kv_heads: int
    """KV heads G of each layer."""
    head_dim: int
    """Head size D."""
    dtype: str = "float32"
    """Element type: float32, bfloat16 or float16."""

    def __post_init__(self) -> None:
        if self.dtype not in _ITEM_BYTES:
            known = ", ".join(sorted(_ITEM_BYTES))
            raise ConfigError(f"KV cache dtype {self.dtype!r} is unknown; choose one of: {known}")
        for name in ("num_layers", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"KV geometry: {name} must be at least 1")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return _ITEM_BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of one KV slot of one layer, keys and values."""
        return 2 * self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer."""
        return PAGE_SIZE * self.token_bytes

    def kv_bytes(self, slots: int) -> int:
        """Bytes of `slots` KV slots of one layer: [2, slots, G, D]."""
        return slots * self.token_bytes

"""What both processes of the transfer benchmark know."""

from shared.types.model_identity import ModelIdentity

MODEL = ModelIdentity(
    name="bench",
    model_hash="bench",
    dtype="bfloat16",
    num_layers=32,
    num_kv_heads=8,
    head_dim=128,
    rope="default",
)
"""Nobody's cache; the shapes do not matter to a transport."""

INCARNATION = "bench-receiver"
"""Of the receiving process."""

TOKEN = b"of the benchmark"
"""Of every grant."""

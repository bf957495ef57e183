"""The sizes that kernels are run at: layers of models, and odd ones that are compared only."""

from loadtest.micro.kernel_decode import DecodeShape
from loadtest.micro.kernel_prefill import PrefillShape

_QWEN = {"heads": 12, "kv_heads": 2, "head_dim": 128, "layers": 28}
_LLAMA = {"heads": 32, "kv_heads": 8, "head_dim": 128}

DECODE_SHAPES = {
    "r1-qwen-1.5b 64 x 18432": DecodeShape(batch=64, tokens=18_432, **_QWEN),
    "r1-qwen-1.5b 64 x 4096": DecodeShape(batch=64, tokens=4_096, **_QWEN),
    "llama-3.1-8b 16 x 32768": DecodeShape(batch=16, tokens=32_768, layers=32, **_LLAMA),
    "llama-3.1-8b 1 x 32768": DecodeShape(batch=1, tokens=32_768, layers=32, copies=8, **_LLAMA),
}
"""Compared, then timed."""

PREFILL_SHAPES = {
    f"llama-3.1-8b {tokens} keep 10 %": PrefillShape(tokens=tokens, kept=tokens // 10, **_LLAMA)
    for tokens in (10_000, 32_768, 65_536)
}
"""Compared, then timed."""


def _odd_batch(
    group: int, kv_heads: int, head_dim: int, tokens: int, batch: int
) -> tuple[str, DecodeShape]:
    shape = DecodeShape(
        batch=batch,
        tokens=tokens,
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        layers=1,
        copies=1,
        budget=4 if tokens <= 100 else 8,  # noqa: PLR2004
        recency=1 if tokens <= 100 else 2,  # noqa: PLR2004
    )
    return f"{batch} x {tokens}, {kv_heads} KV heads of {group}, size {head_dim}", shape


ODD_DECODE_SHAPES = dict(
    [
        _odd_batch(3, 2, 16, 100, 2),
        _odd_batch(1, 1, 64, 20, 3),
        _odd_batch(3, 3, 64, 4_100, 5),
        _odd_batch(4, 8, 128, 1_000, 3),
        _odd_batch(5, 8, 128, 777, 2),
        _odd_batch(6, 2, 128, 5_000, 3),
        _odd_batch(7, 4, 128, 513, 4),
        _odd_batch(8, 1, 256, 300, 3),
        _odd_batch(20, 1, 64, 2_049, 2),
        _odd_batch(4, 8, 128, 150_001, 1),
    ]
)
"""Compared only; the first alone without a GPU."""


def _odd_prompt(
    group: int, kv_heads: int, head_dim: int, tokens: int, kept: int
) -> tuple[str, PrefillShape]:
    heads = group * kv_heads
    shape = PrefillShape(
        tokens=tokens, heads=heads, kv_heads=kv_heads, head_dim=head_dim, kept=kept
    )
    return f"{kept} of {tokens}, {kv_heads} KV heads of {group}, size {head_dim}", shape


ODD_PREFILL_SHAPES = dict(
    [
        _odd_prompt(3, 2, 16, 90, 20),
        _odd_prompt(1, 1, 64, 9, 1),
        _odd_prompt(3, 3, 64, 1_025, 129),
        _odd_prompt(7, 4, 128, 2_000, 2_000),
        _odd_prompt(8, 1, 256, 777, 65),
    ]
)
"""Compared only; the first alone without a GPU."""

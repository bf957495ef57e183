"""Models and batches that decode steps are measured at."""

from dataclasses import dataclass, replace

from shared.model.config import ModelConfig
from shared.model.shapes import MODEL_SHAPES

R1_QWEN_1_5B = MODEL_SHAPES["r1-qwen-1.5b"]
"""DeepSeek-R1-Distill-Qwen-1.5B."""

LLAMA_3_1_8B = MODEL_SHAPES["llama-3.1-8b"]
"""Llama-3.1-8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase:
    """A batch of equal rows."""

    config: ModelConfig
    """Model."""
    batch: int
    """Rows."""
    context: int
    """Original tokens of a row before the first step that is measured."""
    full_layers: tuple[int, ...]
    """F."""
    keep_rate: float | None = None
    """Share of the prompt that pruned arms hold; None: there are none."""
    budget: int = 64
    """Page budget K."""
    recency: int = 8
    """Recency pages L."""
    whole_layers: int = 4
    """Layers that hold every prompt token, m."""


CASES = {
    "r1-qwen-1.5b 64 x 18432": StepCase(
        config=R1_QWEN_1_5B, batch=64, context=18_432, full_layers=(0, 1, 2, 14, 22)
    ),
    "r1-qwen-1.5b 64 x 4096": StepCase(
        config=R1_QWEN_1_5B, batch=64, context=4096, full_layers=(0, 1, 2, 14, 22)
    ),
    "llama-3.1-8b 16 x 32768": StepCase(
        config=LLAMA_3_1_8B,
        batch=16,
        context=32_768,
        full_layers=(0, 1, 2, 8, 13),
        keep_rate=0.2,
    ),
    "llama-3.1-8b 1 x 32768": StepCase(
        config=LLAMA_3_1_8B,
        batch=1,
        context=32_768,
        full_layers=(0, 1, 2, 8, 13),
        keep_rate=0.2,
    ),
}

TINY = StepCase(
    config=replace(
        R1_QWEN_1_5B,
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=6,
        num_heads=6,
        num_kv_heads=2,
        head_dim=16,
        max_position=1024,
    ),
    batch=2,
    context=150,
    full_layers=(0, 1, 3),
    keep_rate=0.6,
    budget=4,
    recency=1,
    whole_layers=2,
)
"""Compared only; all that a machine without a GPU can do."""

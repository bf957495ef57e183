"""transformers as the reference of an unpruned prefill.

Shapes: T tokens, G KV heads, D head size, V vocabulary.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


@torch.inference_mode()
def transformers_prefill(
    folder: Path, ids: list[int]
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Logits [V] after the prompt, and each layer's keys and values [T, G, D]."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    output = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
    cache = [
        (layer.keys[0].transpose(0, 1), layer.values[0].transpose(0, 1))
        for layer in output.past_key_values.layers
    ]
    return output.logits[0, -1], cache

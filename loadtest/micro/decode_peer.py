"""transformers as the other arm of the decode benchmark, and the prompt KV that all arms share.

Shapes: T prompt tokens, G KV heads, D head size, V vocabulary.
"""

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from decode_service.engine.solo import PromptTensors
from shared.types.kv_manifest import LayoutSpec, PositionKind


class TransformersPeer:
    """Greedy decode by transformers: a DynamicCache, sdpa attention, one forward pass a token.

    Leaner than its `generate`, whose bookkeeping it leaves out.

    Args:
        folder: standard model folder.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM  # noqa: PLC0415  slow to import

        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        )
        takes = inspect.signature(self._model.forward).parameters
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        self._prompt_KV: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._prompt_tokens = 0
        self.first_token = -1

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[int]) -> PromptTensors:
        """Reads the prompt once; its KV then serves every run of every arm."""
        cache = self._new_cache()
        output = self._model(
            torch.tensor([token_ids]),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        self.first_token = int(output.logits[0, -1].argmax())
        self._prompt_tokens = len(token_ids)
        self._prompt_KV = [(layer.keys, layer.values) for layer in cache.layers]
        return PromptTensors(
            prompt_tokens=len(token_ids),
            layouts=(LayoutSpec(kind=PositionKind.IDENTITY, slots=len(token_ids)),),
            layer_layouts=(0,) * len(self._prompt_KV),
            positions={},
            keys_values=[(k[0].transpose(0, 1), v[0].transpose(0, 1)) for k, v in self._prompt_KV],
        )

    @torch.inference_mode()
    def run(self, steps: int) -> tuple[list[int], list[float], float]:
        """Decodes after the prompt.

        Returns:
            `steps` tokens after the first, the top-2 logit gap of each, and the seconds taken.
        """
        cache = self._new_cache()
        for index, (keys, values) in enumerate(self._prompt_KV):
            cache.update(keys, values, index)
        tokens, logits = [self.first_token], []
        started = time.perf_counter()
        for step in range(steps):
            output = self._model(
                torch.tensor([[tokens[-1]]]),
                position_ids=torch.tensor([[self._prompt_tokens + step]]),
                use_cache=True,
                **{self._cache_name: cache},
            )
            logits.append(output.logits[0, -1])
            tokens.append(int(logits[-1].argmax()))
        seconds = time.perf_counter() - started
        best = [row_V.topk(2).values for row_V in logits]
        return tokens[1:], [float(top[0] - top[1]) for top in best], seconds

    def _new_cache(self) -> Any:  # noqa: ANN401  transformers carries no types
        from transformers import DynamicCache  # noqa: PLC0415  slow to import

        return DynamicCache(config=self._model.config)

"""The same model in transformers, the reference of the parity tests."""

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from shared.model.config import ModelConfig


def hf_model(
    config: ModelConfig, tensors: dict[str, Tensor], *, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A transformers model of `config` that holds exactly `tensors`."""
    raw = config.to_dict()
    hf_config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    model = AutoModelForCausalLM.from_config(hf_config, attn_implementation="sdpa").eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    if missing:
        model.tie_weights()
    twin: PreTrainedModel = model.to(dtype)
    return twin


@torch.inference_mode()
def hf_logits(model: PreTrainedModel, ids_T: Tensor) -> Tensor:
    """Float32 logits [T, V]."""
    logits_TV: Tensor = model(ids_T[None]).logits[0].float()
    return logits_TV

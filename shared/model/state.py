"""Between tensors named as transformers names them and a Transformer with fused products.

Shapes: E hidden width, V vocabulary.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from shared.errors import ModelLoadError
from shared.model.config import ModelConfig
from shared.model.layers import LayerWeights
from shared.model.transformer import Transformer

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Types that a model can be served in."""


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of `config` must hold."""
    e, d, i = config.hidden_size, config.head_dim, config.intermediate_size
    q_rows, kv_rows = config.num_heads * d, config.num_kv_heads * d
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, e),
        "model.norm.weight": (e,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, e)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (e,),
        "post_attention_layernorm.weight": (e,),
        "self_attn.q_proj.weight": (q_rows, e),
        "self_attn.k_proj.weight": (kv_rows, e),
        "self_attn.v_proj.weight": (kv_rows, e),
        "self_attn.o_proj.weight": (e, q_rows),
        "mlp.gate_proj.weight": (i, e),
        "mlp.up_proj.weight": (i, e),
        "mlp.down_proj.weight": (e, i),
    }
    if config.qkv_bias:
        layer |= {
            "self_attn.q_proj.bias": (q_rows,),
            "self_attn.k_proj.bias": (kv_rows,),
            "self_attn.v_proj.bias": (kv_rows,),
        }
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (d,), "self_attn.k_norm.weight": (d,)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def check_tensors(
    config: ModelConfig, found: Mapping[str, tuple[int, ...]], *, source: str
) -> None:
    """Compares the shapes of a checkpoint with what its configuration calls for.

    Raises:
        ModelLoadError: tensors are missing or have another shape; the first few are named.
    """
    wanted = tensor_shapes(config)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ModelLoadError(
            f"{source} lacks {len(missing)} of {len(wanted)} tensors "
            f"({', '.join(missing[:3])}...): "
            "a shard is missing or config.json belongs to another checkpoint; download the model "
            "again"
        )
    wrong = [
        f"{name} is {found[name]}, not {shape}"
        for name, shape in wanted.items()
        if tuple(found[name]) != shape
    ]
    if wrong:
        raise ModelLoadError(
            f"{source}: {len(wrong)} tensors have another shape than config.json says "
            f"({'; '.join(wrong[:3])}): "
            "config.json belongs to another checkpoint; download the model again"
        )


def build_transformer(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    *,
    dtype: torch.dtype,
    model_hash: str,
    device: str = "cpu",
) -> Transformer:
    """Fuses and casts `tensors` (exactly those of `tensor_shapes`) into a model on `device`."""

    def take(*names: str) -> Tensor:
        parts = [tensors[name].to(device=device, dtype=dtype) for name in names]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def layer(index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        attn = f"{prefix}.self_attn"
        return LayerWeights(
            input_norm_E=take(f"{prefix}.input_layernorm.weight"),
            qkv=take(*(f"{attn}.{part}_proj.weight" for part in "qkv")),
            qkv_bias=take(*(f"{attn}.{part}_proj.bias" for part in "qkv"))
            if config.qkv_bias
            else None,
            q_norm_D=take(f"{attn}.q_norm.weight") if config.qk_norm else None,
            k_norm_D=take(f"{attn}.k_norm.weight") if config.qk_norm else None,
            out=take(f"{attn}.o_proj.weight"),
            post_norm_E=take(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=take(f"{prefix}.mlp.gate_proj.weight", f"{prefix}.mlp.up_proj.weight"),
            down=take(f"{prefix}.mlp.down_proj.weight"),
        )

    embedding_VE = take("model.embed_tokens.weight")
    return Transformer(
        config,
        embedding_VE=embedding_VE,
        layers=[layer(index) for index in range(config.num_layers)],
        norm_E=take("model.norm.weight"),
        head_VE=embedding_VE if config.tie_embeddings else take("lm_head.weight"),
        model_hash=model_hash,
    )


def tensor_views(model: Transformer) -> dict[str, Tensor]:
    """The inverse of `build_transformer`: under transformers' names, nothing copied."""
    config = model.config
    d = config.head_dim
    sizes = [config.num_heads * d, config.num_kv_heads * d, config.num_kv_heads * d]
    out = {"model.embed_tokens.weight": model.embedding_VE, "model.norm.weight": model.norm_E}
    if not config.tie_embeddings:
        out["lm_head.weight"] = model.head_VE
    for index, layer in enumerate(model.layers):
        w, prefix = layer.weights, f"model.layers.{index}"
        out[f"{prefix}.input_layernorm.weight"] = w.input_norm_E
        out[f"{prefix}.post_attention_layernorm.weight"] = w.post_norm_E
        out[f"{prefix}.self_attn.o_proj.weight"] = w.out
        out[f"{prefix}.mlp.down_proj.weight"] = w.down
        gate, up = w.gate_up.chunk(2)
        out[f"{prefix}.mlp.gate_proj.weight"] = gate
        out[f"{prefix}.mlp.up_proj.weight"] = up
        for part, weight in zip("qkv", torch.split(w.qkv, sizes), strict=True):
            out[f"{prefix}.self_attn.{part}_proj.weight"] = weight
        if w.qkv_bias is not None:
            for part, bias in zip("qkv", torch.split(w.qkv_bias, sizes), strict=True):
                out[f"{prefix}.self_attn.{part}_proj.bias"] = bias
        if w.q_norm_D is not None and w.k_norm_D is not None:
            out[f"{prefix}.self_attn.q_norm.weight"] = w.q_norm_D
            out[f"{prefix}.self_attn.k_norm.weight"] = w.k_norm_D
    return out

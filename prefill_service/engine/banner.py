"""What a prefill worker says of itself once it is ready."""

import structlog

from shared.kv.geometry import KvGeometry
from shared.model.profile_record import ModelProfile
from shared.types.worker_info import WorkerInfo

_log = structlog.get_logger(__name__)


def banner(info: WorkerInfo, profile: ModelProfile) -> dict[str, object]:
    """The facts of the ready line."""
    pruning = profile.pruning
    return {
        "model": info.model.name,
        "dtype": info.model.dtype,
        "context": info.max_model_len,
        "device": info.device,
        "attention": info.attention_backend,
        "rejected_backends": list(info.rejected_backends),
        "profile": profile.label,
        "keep_rate": pruning.keep_rate,
        "pruning_layer": pruning.pruning_layer,
        "aggregation": pruning.aggregation.value,
        "kv_select": pruning.kv_select.value,
        "bypass_below": pruning.bypass_below,
        "transports": list(info.transports),
        "rejected_transports": list(info.rejected_transports),
        "faults": info.faults,
    }


def warn_of_buffer(geometry: KvGeometry, *, max_model_len: int, buffer_bytes: int) -> None:
    """Says so when unpruned prompts of full length will not fit."""
    longest = geometry.num_layers * geometry.kv_bytes(max_model_len)
    if longest > buffer_bytes:
        _log.warning(
            "buffer_bytes is below the KV of the longest prompt; unpruned ones will be refused",
            buffer_bytes=buffer_bytes,
            longest_prompt_bytes=longest,
        )

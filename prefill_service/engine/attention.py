"""The attention of a worker's model: measured where there is a choice, and told in the log."""

import structlog

from shared.model.exact_attention import HeadShape
from shared.model.pack_attention import with_packs
from shared.model.probe import AttentionChoice, probe_attention
from shared.model.transformer import Transformer

_log = structlog.get_logger(__name__)


def probe_for(model: Transformer) -> AttentionChoice:
    """Chooses for a model; takes a second or two on a CUDA device."""
    shape = HeadShape.of(model.config, model.dtype)
    choice = with_packs(probe_attention(model.device, shape=shape), shape, model.device)
    if choice.seconds:
        microseconds = {
            name: {tokens: round(taken * 1e6) for tokens, taken in by_length.items()}
            for name, by_length in choice.seconds.items()
        }
        _log.info(
            "attention measured",
            serves=choice.backend.name,
            serves_blocks=choice.blocks,
            us_a_layer=microseconds,
        )
    return choice

"""What a profile says: the parameters of both methods, for which model, and from where."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from shared.model.config import ModelConfig
from shared.types.methods import PruningParams, SparsityParams


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFit:
    """Which models a profile is for; what is not stated fits any."""

    family: str | None = None
    """llama, mistral, qwen2 or qwen3."""
    num_layers: int | None = None
    """Decoder layers."""
    hidden_size: int | None = None
    """Width of the residual stream."""
    vocab_size: int | None = None
    """Rows of the embedding."""
    hash: str = ""
    """Model hash of the weights that it was calibrated on; empty: any weights of this shape."""

    def describes(self, config: ModelConfig) -> bool:
        """Whether a shape is stated and `config` has it."""
        stated = (
            (self.family, config.family),
            (self.num_layers, config.num_layers),
            (self.hidden_size, config.hidden_size),
            (self.vocab_size, config.vocab_size),
        )
        return all(wanted == found for wanted, found in stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """What a model is pruned and sparsified with, unless a request says otherwise."""

    name: str
    """Model name or file name without its ending, or `paper` or `default`."""
    pruning: PruningParams
    """The ranking method's parameters."""
    sparsity: SparsityParams
    """The page policy and its parameters."""
    source: str
    """Where the values come from, in a sentence."""
    calibrated: bool = False
    """Whether the pruning depth was measured on this very model by `tandem calibrate`."""
    fit: ModelFit = field(default_factory=ModelFit)
    """Which models it is for."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """`pruning.keep_rate` and so on to the source of that value."""

    @property
    def methods_hash(self) -> str:
        """Twelve hex digits that change with the pruning and the page selection."""
        methods = repr((self.pruning, self.sparsity))
        return hashlib.sha256(methods.encode()).hexdigest()[:12]

    @property
    def label(self) -> str:
        """Name and whether it is calibrated, as the banner, the log and `health` show it."""
        return f"{self.name} ({'calibrated' if self.calibrated else 'not calibrated'})"

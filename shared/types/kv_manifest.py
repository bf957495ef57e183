"""A KV cache in a slab: what the prefill side promises and the decode side verifies."""

from dataclasses import dataclass
from enum import Enum

from shared.types.handoff import HandoffKey
from shared.types.methods import Aggregation, KvSelect
from shared.types.model_identity import ModelIdentity
from shared.types.sampling import SampledToken


class PositionKind(Enum):
    """How the KV slots of a layout map to positions."""

    IDENTITY = "identity"
    SHARED = "shared"
    PER_HEAD = "per_head"


class SegmentKind(Enum):
    """What a segment holds."""

    KV = "kv"
    POSITIONS = "positions"


class SegmentCheck(Enum):
    """How the bytes of segments are summed; what a manifest names, its receiver computes."""

    CRC32 = "crc32"
    """CRC-32, where they are on the host."""
    SUM64 = "sum64"
    """Weighted 64-bit sum, where they are in a device's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One contiguous piece of a slab."""

    kind: SegmentKind
    """KV: [2, slots, kv_heads, head_dim] in the model's dtype;
    POSITIONS: int32 [rows, slots], ascending in each row."""
    index: int
    """Layer of a KV segment, layout of a position segment."""
    offset: int
    """Start, in bytes."""
    length: int
    """Bytes."""
    crc32: int = 0
    """CRC-32 of the bytes, where the manifest says that sums are such."""
    sum64: int = 0
    """Weighted sum of the bytes, 0 to 2^64 - 1, where the manifest says that sums are such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpec:
    """One slot-to-position map, used by one or several layers."""

    kind: PositionKind
    """IDENTITY ships nothing; SHARED one row; PER_HEAD one row a KV head."""
    slots: int
    """KV slots of the prompt in every layer of this layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSummary:
    """What a prompt was pruned with; recorded in manifests and answers."""

    pruned: bool
    """False: every token was kept."""
    reason: str
    """`profile`, `request`, `short_prompt`, `mode_full`, `keep_all`."""
    pruning_layer: int
    """lp."""
    aggregation_window: int
    """n."""
    deferred_layers: int
    """m."""
    observation_window: int
    """W."""
    aggregation: Aggregation
    """How layers were combined."""
    kv_select: KvSelect
    """Whose positions each layer keeps."""
    keep_rate: float
    """r as asked for."""
    kept_tokens: int
    """Tokens kept after lp."""
    protected_tokens: int = 0
    """Tokens among them that were kept whatever their scores, the window's aside."""
    mass: float | None = None
    """Share of the attention mass that set the kept count; None when the keep rate did."""
    ranker: str = "claa"
    """The method that chose."""
    kv_tokens: int | None = None
    """KV entries of a layer that holds a choice, when they are fewer than `kept_tokens`."""

    @property
    def slots(self) -> int:
        """KV entries of every layer that does not hold the whole prompt."""
        return self.kept_tokens if self.kv_tokens is None else self.kv_tokens

    def last_choosing_layer(self, num_layers: int) -> int:
        """The last layer whose cache may hold positions of its own.

        The pruning layer; or the last of all, where caches hold less than the sequence.
        """
        return self.pruning_layer if self.kv_tokens is None else num_layers - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KvManifest:
    """All about a KV cache in a slab."""

    handoff: HandoffKey
    """Which handoff."""
    model: ModelIdentity
    """Whose cache."""
    prompt_tokens: int
    """Original prompt length L."""
    next_position: int
    """Position of the first generated token's query: L, never the kept count."""
    prompt_hash: str
    """SHA-256 of the prompt's token ids as little-endian uint32, hex."""
    pruning: PruningSummary
    """What it was pruned with."""
    layouts: tuple[LayoutSpec, ...]
    """Layout 0 is the identity of the whole layers."""
    layer_layouts: tuple[int, ...]
    """Layout of each layer."""
    segments: tuple[Segment, ...]
    """Every segment, in slab order."""
    first_tokens: tuple[SampledToken, ...]
    """One a branch; none where they follow."""
    first_tokens_follow: bool = False
    """The cache was complete before they were drawn; whoever asks to decode brings them."""
    sums_follow: bool = False
    """Its segments carry no sums yet: the end of the push brings them."""
    draws: int = 1
    """Generator draws made per branch so far."""
    check: SegmentCheck = SegmentCheck.CRC32
    """Which sums its segments carry."""

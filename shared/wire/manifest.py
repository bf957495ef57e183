"""KV manifests on the wire."""

from enum import Enum
from typing import TypeVar

from protos.tandem.v1 import common_pb2, decode_pb2
from shared.errors import ManifestError
from shared.types.kv_manifest import (
    KvManifest,
    LayoutSpec,
    PositionKind,
    PruningSummary,
    Segment,
    SegmentCheck,
    SegmentKind,
)
from shared.types.methods import Aggregation, KvSelect
from shared.wire.identity import (
    handoff_from_pb,
    handoff_to_pb,
    identity_from_pb,
    identity_to_pb,
)
from shared.wire.sampling import token_from_pb, token_to_pb

E = TypeVar("E", bound=Enum)
V = TypeVar("V", bound=int)

_SEGMENT_KINDS = {
    SegmentKind.KV: decode_pb2.SEGMENT_KIND_KV,
    SegmentKind.POSITIONS: decode_pb2.SEGMENT_KIND_POSITIONS,
}
_SEGMENT_KINDS_BACK = {value: key for key, value in _SEGMENT_KINDS.items()}
_POSITION_KINDS = {
    PositionKind.IDENTITY: decode_pb2.POSITION_KIND_IDENTITY,
    PositionKind.SHARED: decode_pb2.POSITION_KIND_SHARED,
    PositionKind.PER_HEAD: decode_pb2.POSITION_KIND_PER_HEAD,
}
_POSITION_KINDS_BACK = {value: key for key, value in _POSITION_KINDS.items()}
_CHECKS = {
    SegmentCheck.CRC32: decode_pb2.SEGMENT_CHECK_CRC32,
    SegmentCheck.SUM64: decode_pb2.SEGMENT_CHECK_SUM64,
}
_CHECKS_BACK = {value: key for key, value in _CHECKS.items()} | {
    decode_pb2.SEGMENT_CHECK_UNSPECIFIED: SegmentCheck.CRC32
}


def pruning_to_pb(summary: PruningSummary) -> common_pb2.PruningSummary:
    """Converts a pruning summary."""
    return common_pb2.PruningSummary(
        pruned=summary.pruned,
        reason=summary.reason,
        pruning_layer=summary.pruning_layer,
        aggregation_window=summary.aggregation_window,
        deferred_layers=summary.deferred_layers,
        observation_window=summary.observation_window,
        aggregation=summary.aggregation.value,
        kv_select=summary.kv_select.value,
        keep_rate=summary.keep_rate,
        kept_tokens=summary.kept_tokens,
        protected_tokens=summary.protected_tokens,
        mass=summary.mass,
        ranker=summary.ranker,
        kv_tokens=summary.kv_tokens,
    )


def pruning_from_pb(message: common_pb2.PruningSummary) -> PruningSummary:
    """Converts a pruning summary.

    Raises:
        ManifestError: an aggregation or selection that this version does not know.
    """
    return PruningSummary(
        pruned=message.pruned,
        reason=message.reason,
        pruning_layer=message.pruning_layer,
        aggregation_window=message.aggregation_window,
        deferred_layers=message.deferred_layers,
        observation_window=message.observation_window,
        aggregation=_member(Aggregation, message.aggregation, field="aggregation"),
        kv_select=_member(KvSelect, message.kv_select, field="kv_select"),
        keep_rate=message.keep_rate,
        kept_tokens=message.kept_tokens,
        protected_tokens=message.protected_tokens,
        mass=message.mass if message.HasField("mass") else None,
        ranker=message.ranker,
        kv_tokens=message.kv_tokens if message.HasField("kv_tokens") else None,
    )


def manifest_to_pb(manifest: KvManifest) -> decode_pb2.Manifest:
    """Converts a manifest."""
    return decode_pb2.Manifest(
        handoff=handoff_to_pb(manifest.handoff),
        model=identity_to_pb(manifest.model),
        prompt_tokens=manifest.prompt_tokens,
        next_position=manifest.next_position,
        prompt_hash=manifest.prompt_hash,
        pruning=pruning_to_pb(manifest.pruning),
        layouts=[
            decode_pb2.Layout(kind=_POSITION_KINDS[layout.kind], slots=layout.slots)
            for layout in manifest.layouts
        ],
        layer_layouts=manifest.layer_layouts,
        segments=[_segment_to_pb(segment) for segment in manifest.segments],
        first_tokens=[token_to_pb(token) for token in manifest.first_tokens],
        draws=manifest.draws,
        check=_CHECKS[manifest.check],
        first_tokens_follow=manifest.first_tokens_follow,
        sums_follow=manifest.sums_follow,
    )


def manifest_from_pb(message: decode_pb2.Manifest) -> KvManifest:
    """Converts a manifest; what it promises is verified by the decode side's intake.

    Raises:
        InvalidRequestError: the handoff is not named.
        ManifestError: a kind that this version does not know.
    """
    return KvManifest(
        handoff=handoff_from_pb(message.handoff),
        model=identity_from_pb(message.model),
        prompt_tokens=message.prompt_tokens,
        next_position=message.next_position,
        prompt_hash=message.prompt_hash,
        pruning=pruning_from_pb(message.pruning),
        layouts=tuple(
            LayoutSpec(kind=_known(_POSITION_KINDS_BACK, layout.kind), slots=layout.slots)
            for layout in message.layouts
        ),
        layer_layouts=tuple(message.layer_layouts),
        segments=tuple(_segment_from_pb(segment) for segment in message.segments),
        first_tokens=tuple(token_from_pb(token) for token in message.first_tokens),
        draws=message.draws,
        check=_known(_CHECKS_BACK, message.check),
        first_tokens_follow=message.first_tokens_follow,
        sums_follow=message.sums_follow,
    )


def _segment_to_pb(segment: Segment) -> decode_pb2.Segment:
    return decode_pb2.Segment(
        kind=_SEGMENT_KINDS[segment.kind],
        index=segment.index,
        offset=segment.offset,
        length=segment.length,
        crc32=segment.crc32,
        sum64=segment.sum64,
    )


def _segment_from_pb(message: decode_pb2.Segment) -> Segment:
    return Segment(
        kind=_known(_SEGMENT_KINDS_BACK, message.kind),
        index=message.index,
        offset=message.offset,
        length=message.length,
        crc32=message.crc32,
        sum64=message.sum64,
    )


def _member(enum: type[E], text: str, *, field: str) -> E:
    try:
        return enum(text)
    except ValueError:
        raise ManifestError(
            f"manifest field {field} is {text!r}, which this version does not know: "
            "the workers run different versions; upgrade the older one"
        ) from None


def _known(table: dict[V, E], value: V) -> E:
    if value not in table:
        raise ManifestError(
            f"manifest holds kind {value}, which this version does not know: "
            "the workers run different versions; upgrade the older one"
        )
    return table[value]

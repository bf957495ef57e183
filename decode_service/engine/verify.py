"""Does a landed KV cache hold what its manifest and its reservation promise?

Every check that fails has a named reason. Shapes: R rows of a position map.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from torch import Tensor

from decode_service.engine.arrival import Taken
from decode_service.engine.handoffs import ReserveSpec
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.landed import LandedBytes
from decode_service.sparsity.layouts import KvLayout
from shared.errors import InvalidRequestError, ManifestError
from shared.kv.geometry import KvGeometry
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import (
    KvManifest,
    LayoutSpec,
    PositionKind,
    PruningSummary,
    SegmentCheck,
    SegmentKind,
)
from shared.types.model_identity import ModelIdentity
from shared.types.token_ids import hash_ids

_PLANS = 64
"""Layouts that are kept: a grant plans one, and its commit looks for it again."""


class RejectReason(Enum):
    """Why a commit was refused, as the path of what does not hold."""

    MODEL = "manifest.model"
    COUNTS = "manifest.prompt_tokens"
    NEXT_POSITION = "manifest.next_position"
    LAYOUT = "manifest.layouts"
    SEGMENTS = "manifest.segments"
    CHECKSUM = "manifest.segments.crc32"
    SUM = "manifest.segments.sum64"
    POSITIONS = "manifest.positions"
    PROMPT_HASH = "manifest.prompt_hash"
    FIRST_TOKENS = "manifest.first_tokens"
    PROMPT_IDS = "prompt_token_ids"


def rejected(reason: RejectReason, what: str) -> ManifestError:
    """The error of a refused commit."""
    return ManifestError(
        f"the commit is refused at {reason.value}: {what}; what landed is not what was promised, "
        "so the slab is dropped; start a new attempt",
        param=reason.value,
    )


class ManifestVerifier:
    """Compares a manifest with the reservation, the model and the landed bytes.

    Args:
        cache: its geometry and split.
        identity: the model that is served.
        vocab_size: token ids are below this.
    """

    def __init__(self, cache: PagedKvCache, *, identity: ModelIdentity, vocab_size: int) -> None:
        self._geometry = cache.geometry
        self._identity = identity
        self._vocab_size = vocab_size

    def with_sums(self, manifest: KvManifest, sums: Sequence[int]) -> KvManifest:
        """A manifest whose sums followed, with those that the end of the push brought.

        Raises:
            ManifestError: they are not its segments'.
        """
        if not manifest.sums_follow:
            return manifest
        if len(sums) != len(manifest.segments):
            raise rejected(
                RejectReason.SUM,
                f"{len(sums)} sums followed for {len(manifest.segments)} segments",
            )
        found = zip(manifest.segments, sums, strict=True)
        segments = tuple(replace(segment, sum64=total) for segment, total in found)
        return replace(manifest, segments=segments, sums_follow=False)

    def check_promises(
        self, manifest: KvManifest, *, spec: ReserveSpec, prompt_ids: Sequence[int]
    ) -> None:
        """Everything that can be said without the bytes.

        Raises:
            ManifestError: with the reason as its `param`.
        """
        differences = self._identity.differences(manifest.model)
        if differences:
            raise rejected(RejectReason.MODEL, "; ".join(differences))
        if not _counts_hold(manifest, spec):
            promised = (manifest.prompt_tokens, manifest.pruning.slots)
            granted = (spec.prompt_tokens, spec.kept_tokens)
            raise rejected(
                RejectReason.COUNTS, f"(prompt, KV) tokens {promised} against {granted} granted"
            )
        if manifest.next_position != manifest.prompt_tokens:
            raise rejected(
                RejectReason.NEXT_POSITION,
                f"{manifest.next_position} after a prompt of {manifest.prompt_tokens} tokens",
            )
        self._check_layout(manifest, spec)
        self._check_tokens(manifest, spec, prompt_ids)

    def check_bytes(self, manifest: KvManifest, landed: LandedBytes) -> tuple[KvLayout, ...]:
        """Sums and positions; returns the layouts, which share no memory with the slab.

        Raises:
            ManifestError: with the reason as its `param`.
        """
        _check_sums(manifest, landed.sums(manifest.segments, manifest.check))
        shipped = {s.index: s for s in manifest.segments if s.kind is SegmentKind.POSITIONS}
        return tuple(
            self.layout(
                spec,
                index,
                prompt_tokens=manifest.prompt_tokens,
                positions=landed.positions(shipped[index]) if index in shipped else None,
            )
            for index, spec in enumerate(manifest.layouts)
        )

    def check_taken(self, manifest: KvManifest, taken: Taken) -> tuple[KvLayout, ...]:
        """The same of bytes that were looked at as they landed, and that `taken.serves`.

        Raises:
            ManifestError: with the reason as its `param`.
        """
        _check_sums(manifest, taken.sums)
        if taken.wrong is not None:
            raise taken.wrong
        return taken.layouts

    def foresee(self, spec: ReserveSpec) -> SlabLayout | None:
        """Where the segments of a handoff will lie; None where that is not known before its commit.

        Args:
            spec: what was granted. Its pages have room for this layout.
        """
        pruning = spec.pruning
        if pruning is None or (pruning.pruned and pruning.mass is not None):
            return None
        if not _slots_hold(pruning, spec):
            return None
        try:
            plan = self._plan(pruning, spec)
        except InvalidRequestError:
            return None  # its commit is refused
        return plan if plan.total_bytes <= spec.slab_bytes else None

    def layout(
        self, spec: LayoutSpec, index: int, *, prompt_tokens: int, positions: Tensor | None
    ) -> KvLayout:
        """Checks the positions of a layout.

        Args:
            spec: the layout.
            index: its number.
            prompt_tokens: original prompt length L.
            positions: int32, as they landed; None for the identity.

        Raises:
            ManifestError: with the reason as its `param`.
        """
        positions_RN = None if positions is None else positions.reshape(-1, spec.slots).clone()
        try:
            layout = KvLayout.from_spec(
                spec,
                positions_RN,
                prompt_tokens=prompt_tokens,
                num_kv_heads=self._geometry.num_kv_heads,
            )
        except ManifestError as error:
            raise rejected(RejectReason.POSITIONS, f"layout {index}: {error.message}") from error
        if positions_RN is not None and bool((positions_RN[:, -1] != prompt_tokens - 1).any()):
            raise rejected(
                RejectReason.POSITIONS, f"layout {index} does not end with the last prompt token"
            )
        assert (spec.kind is PositionKind.IDENTITY) == (positions is None), "planned before"
        return layout

    def _plan(self, pruning: PruningSummary, spec: ReserveSpec) -> SlabLayout:
        """Raises InvalidRequestError where the pages have no room for it."""
        if not pruning.pruned and spec.kept_tokens < spec.prompt_tokens:
            raise InvalidRequestError(
                f"room was granted for {spec.kept_tokens} kept of {spec.prompt_tokens} tokens, and "
                "the prompt is said to be whole; prune it as it was announced"
            )
        return _planned(self._geometry, pruning, spec.prompt_tokens, spec.whole_layers)

    def _check_layout(self, manifest: KvManifest, spec: ReserveSpec) -> None:
        try:
            plan = self._plan(manifest.pruning, spec)
        except InvalidRequestError as error:
            raise rejected(RejectReason.LAYOUT, error.message) from error
        if (plan.layouts, plan.layer_layouts) != (manifest.layouts, manifest.layer_layouts):
            raise rejected(
                RejectReason.LAYOUT, "layouts or their layers differ from those of these counts"
            )
        places = [(s.kind, s.index, s.offset, s.length) for s in manifest.segments]
        planned = [(s.kind, s.index, s.offset, s.length) for s in plan.segments]
        if places != planned or plan.total_bytes > spec.slab_bytes:
            raise rejected(
                RejectReason.SEGMENTS,
                "segments differ from those of these counts or leave the slab",
            )

    def _check_tokens(
        self, manifest: KvManifest, spec: ReserveSpec, prompt_ids: Sequence[int]
    ) -> None:
        expected = 0 if manifest.first_tokens_follow else spec.num_branches
        if len(manifest.first_tokens) != expected or not all(
            token.token_id < self._vocab_size for token in manifest.first_tokens
        ):
            raise rejected(
                RejectReason.FIRST_TOKENS,
                f"{len(manifest.first_tokens)} first tokens for {spec.num_branches} answers, "
                "or one outside the vocabulary",
            )
        if not prompt_ids:
            return
        if len(prompt_ids) != manifest.prompt_tokens:
            raise rejected(
                RejectReason.PROMPT_IDS,
                f"{len(prompt_ids)} ids for a prompt of {manifest.prompt_tokens} tokens",
            )
        if hash_ids(prompt_ids) != manifest.prompt_hash:
            raise rejected(RejectReason.PROMPT_HASH, "the ids sent along have another hash")


@lru_cache(maxsize=_PLANS)
def _planned(
    geometry: KvGeometry, pruning: PruningSummary, prompt_tokens: int, whole_layers: int
) -> SlabLayout:
    return SlabLayout.plan(
        geometry,
        prompt_tokens=prompt_tokens,
        kept_tokens=pruning.slots,
        whole_layers=whole_layers,
        pruning_layer=pruning.last_choosing_layer(geometry.num_layers),
        kv_select=pruning.kv_select,
        pruned=pruning.pruned,
    )


def _counts_hold(manifest: KvManifest, spec: ReserveSpec) -> bool:
    """Whether the granted tokens came."""
    return _slots_hold(manifest.pruning, spec) and manifest.prompt_tokens == spec.prompt_tokens


def _slots_hold(pruning: PruningSummary, spec: ReserveSpec) -> bool:
    """Whether the granted slots are its own; a mass reserves the most that it may come to."""
    most, may_be_fewer = spec.kept_tokens, pruning.pruned and pruning.mass is not None
    return 1 <= pruning.slots <= most if may_be_fewer else pruning.slots == most


def _check_sums(manifest: KvManifest, sums: Sequence[int]) -> None:
    by_crc32 = manifest.check is SegmentCheck.CRC32
    for segment, found in zip(manifest.segments, sums, strict=True):
        if found != (segment.crc32 if by_crc32 else segment.sum64):
            raise rejected(
                RejectReason.CHECKSUM if by_crc32 else RejectReason.SUM,
                f"{segment.kind.value} segment {segment.index} at byte {segment.offset} "
                "has another checksum",
            )

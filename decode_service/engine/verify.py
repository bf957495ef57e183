"""Does a landed KV cache hold what its manifest and its reservation promise?

Every check that fails has a named reason. Shapes: R rows of a position map.
"""

import hashlib
import struct
from collections.abc import Sequence
from enum import Enum

from decode_service.engine.handoffs import ReserveSpec
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.landed import LandedBytes
from decode_service.sparsity.layouts import KvLayout
from shared.errors import InvalidRequestError, ManifestError
from shared.kv.slab_layout import SlabLayout
from shared.types.kv_manifest import KvManifest, PositionKind, Segment, SegmentCheck, SegmentKind
from shared.types.model_identity import ModelIdentity


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
        by_crc32 = manifest.check is SegmentCheck.CRC32
        sums = landed.sums(manifest.segments, manifest.check)
        for segment, found in zip(manifest.segments, sums, strict=True):
            if found != (segment.crc32 if by_crc32 else segment.sum64):
                raise rejected(
                    RejectReason.CHECKSUM if by_crc32 else RejectReason.SUM,
                    f"{segment.kind.value} segment {segment.index} at byte {segment.offset} "
                    "has another checksum",
                )
        shipped = {s.index: s for s in manifest.segments if s.kind is SegmentKind.POSITIONS}
        return tuple(
            self._layout(manifest, index, shipped.get(index), landed)
            for index in range(len(manifest.layouts))
        )

    def _check_layout(self, manifest: KvManifest, spec: ReserveSpec) -> None:
        try:
            plan = SlabLayout.plan(
                self._geometry,
                prompt_tokens=spec.prompt_tokens,
                kept_tokens=manifest.pruning.slots,
                whole_layers=spec.whole_layers,
                pruning_layer=manifest.pruning.last_choosing_layer(self._geometry.num_layers),
                kv_select=manifest.pruning.kv_select,
                pruned=manifest.pruning.pruned,
            )
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
        if len(manifest.first_tokens) != spec.num_branches or not all(
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
        if hash_prompt(prompt_ids) != manifest.prompt_hash:
            raise rejected(RejectReason.PROMPT_HASH, "the ids sent along have another hash")

    def _layout(
        self, manifest: KvManifest, index: int, segment: Segment | None, landed: LandedBytes
    ) -> KvLayout:
        spec = manifest.layouts[index]
        positions_RN = None
        if segment is not None:
            positions_RN = landed.positions(segment).reshape(-1, spec.slots).clone()
        try:
            layout = KvLayout.from_spec(
                spec,
                positions_RN,
                prompt_tokens=manifest.prompt_tokens,
                num_kv_heads=self._geometry.num_kv_heads,
            )
        except ManifestError as error:
            raise rejected(RejectReason.POSITIONS, f"layout {index}: {error.message}") from error
        if positions_RN is not None and bool(
            (positions_RN[:, -1] != manifest.prompt_tokens - 1).any()
        ):
            raise rejected(
                RejectReason.POSITIONS, f"layout {index} does not end with the last prompt token"
            )
        assert (spec.kind is PositionKind.IDENTITY) == (segment is None), "planned above"
        return layout


def _counts_hold(manifest: KvManifest, spec: ReserveSpec) -> bool:
    """Whether the granted tokens came; a mass reserves the most that it may come to."""
    pruning = manifest.pruning
    most, may_be_fewer = spec.kept_tokens, pruning.pruned and pruning.mass is not None
    fits = 1 <= pruning.slots <= most if may_be_fewer else pruning.slots == most
    return fits and manifest.prompt_tokens == spec.prompt_tokens


def hash_prompt(prompt_ids: Sequence[int]) -> str:
    """SHA-256 of token ids as little-endian uint32, hex."""
    return hashlib.sha256(struct.pack(f"<{len(prompt_ids)}I", *prompt_ids)).hexdigest()

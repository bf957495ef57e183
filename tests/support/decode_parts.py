"""Parts of a decode worker with a clock that tests turn by hand."""

from dataclasses import dataclass

from decode_service.engine.admission import Capacity
from decode_service.engine.branches import branch_prompt
from decode_service.engine.handoffs import (
    AdoptedKv,
    Reservation,
    ReservationLimits,
    ReserveSpec,
)
from decode_service.engine.kv_cache import PagedKvCache
from decode_service.engine.reservations import ReservationTable
from decode_service.engine.sequence import PromptKv
from decode_service.sparsity.layouts import KvLayout
from shared.kv.geometry import KvGeometry
from shared.kv.slab import Slab
from shared.kv.slab_layout import SlabLayout
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import KvManifest, PositionKind, PruningSummary
from shared.types.methods import Aggregation, KvSelect
from shared.types.model_identity import ModelIdentity
from shared.types.sampling import SampledToken

GEOMETRY = KvGeometry(num_layers=4, num_kv_heads=1, head_dim=4)
WHOLE_LAYERS = 2
IDENTITY = ModelIdentity(
    name="m",
    model_hash="0" * 64,
    dtype="float32",
    num_layers=4,
    num_kv_heads=1,
    head_dim=4,
    rope="default",
)
PROMPT_TOKENS = 20


class HandClock:
    """Monotonic seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TableParts:
    """A reservation table and what it owns."""

    clock: HandClock
    slab: Slab
    cache: PagedKvCache
    capacity: Capacity
    table: ReservationTable

    def adopted(self, granted: Reservation) -> AdoptedKv:
        """What the intake would have made of an unpruned prompt."""
        tokens = granted.spec.prompt_tokens
        layouts = (KvLayout(kind=PositionKind.IDENTITY, slots=tokens, positions_RN=None),)
        prompt = PromptKv(
            pages=granted.pages,
            layouts=layouts,
            layer_layouts=(0,) * GEOMETRY.num_layers,
            whole_layers=WHOLE_LAYERS,
            prompt_tokens=tokens,
        )
        own = granted.own_pages
        others = [branch_prompt(self.cache, prompt, own[branch]) for branch in sorted(own)]
        return AdoptedKv(
            manifest=plain_manifest(granted.key, tokens),
            branches=(prompt, *others),
            prompt_ids=(),
            seconds=0.0,
        )


def make_parts(
    *, slab_bytes: int = 1 << 16, pages: int = 16, remember_max: int = 1000, **durations: float
) -> TableParts:
    """A table over a tiny cache; durations as in `ReservationLimits`."""
    clock = HandClock()
    slab = Slab(slab_bytes)
    cache = PagedKvCache(
        GEOMETRY, whole_layers=WHOLE_LAYERS, pages_front=pages, pages_rest=pages, poison=True
    )
    capacity = Capacity(
        identity=IDENTITY,
        num_heads=GEOMETRY.num_kv_heads,
        max_model_len=64,
        whole_layers=WHOLE_LAYERS,
        pages_front=pages,
        pages_rest=pages,
        slab_bytes=slab.total_bytes,
    )
    limits = ReservationLimits(remember_max=remember_max, **durations)
    table = ReservationTable(slab, cache, capacity=capacity, limits=limits, clock=clock)
    return TableParts(clock, slab, cache, capacity, table)


def reserve_spec(key: HandoffKey, *, prompt_tokens: int = PROMPT_TOKENS) -> ReserveSpec:
    """A reservation for an unpruned prompt."""
    return ReserveSpec(
        handoff=key,
        model=IDENTITY,
        prompt_tokens=prompt_tokens,
        kept_tokens=prompt_tokens,
        whole_layers=GEOMETRY.num_layers,
        slab_bytes=4096,
        max_new_tokens=8,
    )


def plain_manifest(key: HandoffKey, prompt_tokens: int) -> KvManifest:
    """The manifest of an unpruned prompt; checksums are 0."""
    plan = SlabLayout.plan(
        GEOMETRY,
        prompt_tokens=prompt_tokens,
        kept_tokens=prompt_tokens,
        whole_layers=GEOMETRY.num_layers,
        pruning_layer=1,
        kv_select=KvSelect.SHARED,
        pruned=False,
    )
    return KvManifest(
        handoff=key,
        model=IDENTITY,
        prompt_tokens=prompt_tokens,
        next_position=prompt_tokens,
        prompt_hash="",
        pruning=PruningSummary(
            pruned=False,
            reason="keep_all",
            pruning_layer=1,
            aggregation_window=1,
            deferred_layers=WHOLE_LAYERS,
            observation_window=4,
            aggregation=Aggregation.RANK_MAX,
            kv_select=KvSelect.SHARED,
            keep_rate=1.0,
            kept_tokens=prompt_tokens,
        ),
        layouts=plan.layouts,
        layer_layouts=plan.layer_layouts,
        segments=plan.segments,
        first_tokens=(SampledToken(token_id=1),),
    )

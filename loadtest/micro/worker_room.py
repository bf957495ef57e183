"""A decode worker's KV memory under the worker's own bookkeeping, with made-up KV in its pages.

Sizing, admission and page grants are the engine's, so what fits here fits a worker. Nothing lands
in the slab: a request holds its lease until its KV is adopted only, so leases are as small as they
can be and never what is missing.

Shapes: N prompt slots, G KV heads, D head size.
"""

import time
from dataclasses import dataclass

import torch

from decode_service.engine.admission import Capacity
from decode_service.engine.handoffs import Busy, Reservation, ReservationLimits, ReserveSpec
from decode_service.engine.kv_cache import LengthGroup, PagedKvCache
from decode_service.engine.reservations import ReservationTable
from decode_service.engine.sequence import PromptKv, Sequence
from decode_service.engine.sizing import CacheSize
from decode_service.sparsity.layouts import KvLayout
from decode_service.sparsity.registry import policy_for
from shared.kv.slab import Slab
from shared.model.transformer import Transformer
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import PositionKind
from shared.types.methods import SparsityParams
from shared.types.sampling import SamplingParams, StopConditions

_LEASE_BYTES = 64
_LEASES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSize:
    """Tokens of a request."""

    prompt_tokens: int
    """Original prompt L."""
    kept_tokens: int
    """KV slots of the prompt in every pruned layer."""
    max_new_tokens: int
    """Answer, the first token included."""

    @property
    def growth(self) -> int:
        """Slots that the answer takes: its last token is never fed."""
        return self.max_new_tokens - 1


class WorkerRoom:
    """Pages of a worker, and requests that hold them.

    Args:
        model: the decoder.
        size: pages.
        max_model_len: longest context in tokens, answer included.
    """

    def __init__(self, model: Transformer, size: CacheSize, *, max_model_len: int) -> None:
        self._model = model
        self.cache = PagedKvCache(
            model.geometry(),
            whole_layers=size.whole_layers,
            pages_front=size.pages_front,
            pages_rest=size.pages_rest,
            device=model.device,
        )
        self._identity = model.identity("bench")
        slab = Slab(_LEASES * _LEASE_BYTES)
        self.table = ReservationTable(
            slab,
            self.cache,
            capacity=Capacity(
                identity=self._identity,
                num_heads=model.config.num_heads,
                max_model_len=max_model_len,
                whole_layers=size.whole_layers,
                pages_front=size.pages_front,
                pages_rest=size.pages_rest,
                slab_bytes=slab.total_bytes,
            ),
            limits=ReservationLimits(),
            clock=time.monotonic,
        )

    @property
    def pool_bytes(self) -> int:
        """Memory of all pages."""
        return sum(pool.memory.nbytes for pool in self.cache.pools.values())

    def ask(self, name: str, size: RequestSize) -> Reservation | Busy:
        """What the worker answers to a prefill worker that asks for room.

        Raises:
            InvalidRequestError: it could never fit.
            ContextLengthError: the prompt leaves no room for an answer.
        """
        return self.table.reserve(
            ReserveSpec(
                handoff=HandoffKey(name),
                model=self._identity,
                prompt_tokens=size.prompt_tokens,
                kept_tokens=size.kept_tokens,
                whole_layers=self.cache.whole_layers,
                slab_bytes=_LEASE_BYTES,
                max_new_tokens=size.max_new_tokens,
            )
        )

    def held_bytes(self, granted: Reservation) -> int:
        """Memory of a request's pages in all layers."""
        page_bytes = self.cache.geometry.page_bytes
        return sum(
            len(granted.pages.of(group).pages) * len(pool.layers) * page_bytes
            for group, pool in self.cache.pools.items()
        )

    def fill(self, granted: Reservation, *, generator: torch.Generator) -> None:
        """Writes noise as the prompt's keys and values, the same to every layer of a group."""
        geometry, spec = self.cache.geometry, granted.spec
        for group, slots in _prompt_slots(spec).items():
            noise_NGD = torch.empty(
                (slots, geometry.num_kv_heads, geometry.head_dim),
                dtype=self._model.dtype,
                device=self._model.device,
            ).normal_(generator=generator)
            for layer in self.cache.pools[group].layers:
                self.cache.write_prompt(
                    granted.pages, layer=layer, keys_NGD=noise_NGD, values_NGD=noise_NGD
                )

    def row(
        self,
        granted: Reservation,
        *,
        sparsity: SparsityParams | None,
        first_token: int,
        prompt_tokens: int | None = None,
    ) -> Sequence:
        """A row over a request's pages that has generated one token.

        Args:
            granted: the request.
            sparsity: which pages it reads; None: all.
            first_token: that token.
            prompt_tokens: as if the prompt, unpruned, had been so long; None: as it was asked for.
        """
        spec, config = granted.spec, self._model.config
        length = spec.prompt_tokens if prompt_tokens is None else prompt_tokens
        layouts = [KvLayout(kind=PositionKind.IDENTITY, slots=length, positions_RN=None)]
        pruned = spec.kept_tokens < spec.prompt_tokens
        if pruned:
            layouts.append(_kept(spec, device=self._model.device))
        whole = self.cache.whole_layers
        return Sequence(
            key=spec.handoff,
            prompt=PromptKv(
                pages=granted.pages,
                layouts=tuple(layouts),
                layer_layouts=(0,) * whole + (int(pruned),) * (config.num_layers - whole),
                whole_layers=whole,
                prompt_tokens=length,
            ),
            policy=policy_for(sparsity, num_layers=config.num_layers),
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            sampling=SamplingParams(temperature=0.0),
            stop=StopConditions(max_tokens=spec.max_new_tokens),
            generated=[first_token],
        )

    def leave(self, granted: Reservation) -> None:
        """Gives a request's pages back."""
        self.table.abort(granted.key)


def _prompt_slots(spec: ReserveSpec) -> dict[LengthGroup, int]:
    return {LengthGroup.FRONT: spec.prompt_tokens, LengthGroup.REST: spec.kept_tokens}


def _kept(spec: ReserveSpec, *, device: torch.device) -> KvLayout:
    """Kept positions at even distances, the last one among them."""
    last = spec.prompt_tokens - 1
    positions_N = torch.linspace(0, last, spec.kept_tokens, dtype=torch.float64).round().long()
    return KvLayout(
        kind=PositionKind.SHARED,
        slots=spec.kept_tokens,
        positions_RN=positions_N[None].to(device),
    )

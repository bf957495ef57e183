"""One prompt's KV, complete or not yet, and all that a delivery needs to know of it."""

import asyncio
from collections.abc import Sequence

from prefill_service.engine.commit_ahead import Foretold
from prefill_service.engine.device_slab import DeviceSlab
from prefill_service.engine.job import PromptRequest
from prefill_service.engine.plan import PromptPlan
from prefill_service.engine.prompt_slab import PromptSlab
from prefill_service.engine.sender import ReserveTerms
from shared.types.handoff import HandoffKey
from shared.types.kv_manifest import KvManifest, Segment, SegmentCheck
from shared.types.model_identity import ModelIdentity
from shared.types.sampling import SampledToken
from shared.types.token_ids import hash_ids
from shared.types.trace import PromptTrace


class Parcel:
    """A KV cache to deliver, once or again.

    Args:
        request: whose it is.
        plan: how it is laid out, as far as that is known before it runs.
        slab: its bytes.
        model: the model that computes it.
    """

    def __init__(
        self, request: PromptRequest, *, plan: PromptPlan, slab: PromptSlab, model: ModelIdentity
    ) -> None:
        self.request = request
        self.plan = plan
        self.slab = slab
        self.completed_at = 0.0
        self.trace: PromptTrace | None = None
        self._model = model
        self._prompt_hash = ""
        self._first_tokens: tuple[SampledToken, ...] = ()
        self._complete = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Whether every byte and the first token are there."""
        return self._complete.is_set()

    @property
    def terms(self) -> ReserveTerms:
        """The room it needs on the decode side."""
        return ReserveTerms(
            prompt_tokens=self.plan.prompt_tokens,
            kept_tokens=self.plan.summary.slots,
            whole_layers=sum(layout == 0 for layout in self.plan.slab.layer_layouts),
            slab_bytes=self.plan.slab.total_bytes,
            max_new_tokens=self.request.stop.max_tokens - self.request.earlier_tokens,
            num_branches=self.request.num_branches,
            pruning=self.plan.summary,
        )

    @property
    def prompt_token_ids(self) -> Sequence[int]:
        """The prompt, when a later draw looks at it; otherwise it is not sent."""
        penalised = self.request.sampling.repetition_penalty != 1.0
        return self.request.token_ids if penalised else ()

    def prepare(self) -> None:
        """Works out what does not depend on the computation, so that nobody waits for it after."""
        self._prompt_hash = self._prompt_hash or hash_ids(self.request.token_ids)

    def finish(
        self,
        first_tokens: tuple[SampledToken, ...],
        *,
        plan: PromptPlan,
        ended_at: float,
    ) -> None:
        """The prompt is computed, as `plan` says.

        Args:
            first_tokens: one a branch.
            plan: the final one.
            ended_at: when they were known, in monotonic seconds.
        """
        self.plan = plan
        self._first_tokens = first_tokens
        self.completed_at = ended_at
        self._complete.set()

    async def computed(self) -> None:
        """Waits for `finish`."""
        await self._complete.wait()

    def foretold(self, key: HandoffKey) -> Foretold | None:
        """What a delivery under `key` may promise ahead; None where that depends on the scores."""
        slab = self.slab
        if not (isinstance(slab, DeviceSlab) and self.plan.final):
            return None

        async def manifest() -> KvManifest:
            await slab.enqueued()
            return self._promise(key, slab.layout.segments, check=SegmentCheck.SUM64, follow=True)

        return Foretold(manifest=manifest, sums=slab.sums, prompt_token_ids=self.prompt_token_ids)

    async def manifest(
        self, key: HandoffKey, *, check: SegmentCheck = SegmentCheck.CRC32
    ) -> KvManifest:
        """What a delivery under `key` promises; waits until all of it is known.

        First tokens that are not drawn yet follow: nobody waits for them here.

        Args:
            key: of the delivery.
            check: the sums that the receiver of the bytes compares.
        """
        self.prepare()
        if not (self.plan.final and self.slab.is_ahead):
            await self.computed()
        return self._promise(key, await self.slab.segments(check), check=check, follow=False)

    def _promise(
        self,
        key: HandoffKey,
        segments: tuple[Segment, ...],
        *,
        check: SegmentCheck,
        follow: bool,
    ) -> KvManifest:
        return KvManifest(
            handoff=key,
            model=self._model,
            prompt_tokens=self.plan.prompt_tokens,
            next_position=self.plan.prompt_tokens,
            prompt_hash=self._prompt_hash,
            pruning=self.plan.summary,
            layouts=self.plan.slab.layouts,
            layer_layouts=self.plan.slab.layer_layouts,
            segments=segments,
            first_tokens=self._first_tokens,
            first_tokens_follow=not self.complete,
            sums_follow=follow,
            draws=1 + self.request.earlier_tokens,
            check=check,
        )

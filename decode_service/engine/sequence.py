"""One running answer: its KV, where it stands, what it has generated.

Shapes: none; tensors live in the page cache and in the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decode_service.engine.kv_cache import LengthGroup, SequencePages
from decode_service.engine.page_record import PageRecord
from decode_service.sparsity.base import PagePolicy, RowFacts, RowPolicy
from decode_service.sparsity.layouts import KvLayout
from shared.errors import ManifestError
from shared.types.handoff import HandoffKey
from shared.types.sampling import SamplingParams, StopConditions

if TYPE_CHECKING:
    from shared.grammar.matcher import TokenMatcher  # its library is no part of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptKv:
    """A prompt's KV in pages: which slots hold which positions."""

    pages: SequencePages
    """Pages of the row, growth included."""
    layouts: tuple[KvLayout, ...]
    """Slot-to-position maps."""
    layer_layouts: tuple[int, ...]
    """Layout of each layer."""
    whole_layers: int
    """The cache's split: layers 0..whole_layers-1 are in the FRONT group."""
    prompt_tokens: int
    """Original prompt length L; the first generated token's query sits at position L."""
    slots: dict[LengthGroup, int] = field(init=False)
    """Prompt slots in each group."""

    def __post_init__(self) -> None:
        ranges = {
            LengthGroup.FRONT: self.layer_layouts[: self.whole_layers],
            LengthGroup.REST: self.layer_layouts[self.whole_layers :],
        }
        slots = {group: self._common_slots(used) for group, used in ranges.items()}
        object.__setattr__(self, "slots", slots)

    def _common_slots(self, used: tuple[int, ...]) -> int:
        counts = {self.layouts[index].slots for index in used}
        if len(counts) > 1:
            raise ManifestError(
                f"layers of one length group arrived with {sorted(counts)} prompt slots: this "
                f"worker keeps {self.whole_layers} layers whole; give both workers one profile"
            )
        return counts.pop() if counts else 0


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """State of one row between steps. The runner alone changes it.

    Raises:
        ConfigError: the policy's parameters do not fit the model.
    """

    key: HandoffKey
    """Which handoff it came from."""
    prompt: PromptKv
    """Its prompt."""
    policy: PagePolicy
    """Which KV slots its layers read."""
    num_heads: int
    """Query heads H of the model."""
    num_kv_heads: int
    """KV heads G of the model."""
    sampling: SamplingParams
    """How its tokens are drawn."""
    stop: StopConditions
    """When the engine ends it; here `min_tokens` matters, `max_tokens` for what is begun early."""
    generated: list[int]
    """Tokens of the answer; begins with the first token, which the prefill side drew. In a replay,
    with all that the client has seen: the KV of all but the last of them came with the prompt's."""
    branch: int = 0
    """Which of the answers to one prompt."""
    draws: int = 1
    """Generator draws made so far."""
    prompt_ids: tuple[int, ...] = ()
    """Prompt tokens, for the repetition penalty; may be empty when nothing needs them."""
    matcher: TokenMatcher | None = None
    """What the answer must conform to; it has accepted `generated`. None: anything."""
    force_sparse: bool = False
    """Select even where the budget covers every slot: a check of the sparse path."""
    steps: int = 0
    """Decode steps done; as many tokens that were generated here have their KV in pages."""
    attended: int = 0
    """KV slots read so far, summed over layers and steps."""
    dense: int = 0
    """KV slots that full attention over the unpruned prompt would have read.

    Position + 1 in every layer of every step, the fed token included.
    """
    refreshes: int = 0
    """Choices of pages that layers which read everything made anew."""
    traced: bool = False
    """Its reads are recorded."""
    record: PageRecord | None = field(init=False, default=None)
    """What its layers read so far; None unless traced."""
    row_policy: RowPolicy = field(init=False)
    """The policy at work on this row, with what it remembers of the steps before."""

    def __post_init__(self) -> None:
        assert self.generated, "the prefill side draws the first token"
        facts = RowFacts(
            prompt_tokens=self.prompt.prompt_tokens,
            layouts=self.prompt.layouts,
            layer_layouts=self.prompt.layer_layouts,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
        )
        self.row_policy = self.policy.begin(facts, force=self.force_sparse)
        assert len(self.row_policy.roles) == facts.num_layers, "one role a layer"
        if self.traced:
            self.record = PageRecord(
                policy=self.policy.name,
                roles=self.row_policy.roles,
                prompt_slots=[facts.layout_of(i).slots for i in range(facts.num_layers)],
                max_tokens=self.stop.max_tokens,
            )

    @property
    def position(self) -> int:
        """Position of the token that the next step feeds: L + t, whatever was pruned."""
        return self.prompt.prompt_tokens + self.steps

    def kv_length(self, group: LengthGroup) -> int:
        """KV slots in use in one group."""
        return self.prompt.slots[group] + self.steps

    def banned_ids(self) -> tuple[int, ...]:
        """Tokens that the next draw must not give: stop ids before `min_tokens`."""
        early = len(self.generated) < self.stop.min_tokens
        return self.stop.token_ids if early else ()

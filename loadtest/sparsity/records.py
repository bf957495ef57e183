"""What a study of page policies knows: one fact for each arm and sample, and the page strips.

Every figure of a sample is paired with dense decode over the same KV in the same run, so that arms
differ in nothing but what they read. `arm` and `budget` name an arm; its parameters stand once, in
its `ArmFact`.

Words: a token-layer is one KV slot read by one layer; token-layers are summed over layers and
steps. A budget is in tokens (16 a page) and 0 where an arm has none (`full`, `dense`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from loadtest.facts import FactStore, Key, Run, facts_of, merge_facts

TEACHER, NEEDLE, LONG, GENERATION, ABLATION = "teacher", "needle", "long", "generation", "ablation"
PARTS = (TEACHER, NEEDLE, LONG, GENERATION, ABLATION)
"""Parts of the study, in the order in which they run."""

BLOCK = 16
"""Scored predictions of one block, the unit of intervals."""

FULL, DENSE = "full", "dense"
"""Arms without a selection: dense decode over the whole prompt, and over what an arm's prefill
kept."""

WHOLE, PRUNED = "whole", "pruned"
"""Prefills: nothing dropped, and the profile's pruning at the study's keep rate. Variants of the
latter are named `pruned/head`, `pruned/layer` and `pruned/shared` after their kv_select."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFact:
    """An arm: a page policy with its parameters, over one kind of prefill."""

    kind: ClassVar[str] = "arm"
    run: int
    """The run that used it first."""
    arm: str
    """Label in tables: the policy's name, or what an ablation changes, such as `L=8`."""
    budget: int
    """Tokens a sparse layer may read; 0: no bound."""
    prefill: str
    """Which prefill it continues."""
    group: str
    """What the arm is compared within: `policies`, or the name of an ablation."""
    policy: str
    """Name in the registry of page policies."""
    roles: str
    """One letter a layer: W (reads all, plans nothing), D (Δ-layer), S (sparse)."""
    sparsity: Mapping[str, Any] = field(default_factory=dict)
    """Its `SparsityParams`, JSON-ready; empty for dense."""
    pruning: Mapping[str, Any] = field(default_factory=dict)
    """The `PruningParams` of its prefill, JSON-ready; empty for `whole`."""

    @property
    def key(self) -> Key:
        """The arm."""
        return (self.kind, self.arm, self.budget, self.prefill, self.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedFact:
    """Known text continued step by step under one arm: parts teacher, long and ablation."""

    kind: ClassVar[str] = "forced"
    run: int
    """The run that measured it."""
    part: str
    """teacher, long or ablation."""
    text: str
    """What is continued: `prose`; of part long `ledger`, `sums`, `copy`, or `repeats`
    (prose with passages that it has word for word further up)."""
    context: int
    """Prompt tokens before the first step."""
    seed: int
    """Number of the text window; another part of the prose, or another draw."""
    arm: str
    """The arm's label."""
    budget: int
    """Its budget, in tokens."""
    prefill: str
    """Which prefill it continues."""
    group: str
    """What the arm is compared within."""
    kept: int
    """Prompt slots of the last layer: `context` where nothing was pruned."""
    steps: int
    """Decode steps; each feeds a token of the text and predicts the next one."""
    scored: int
    """Predictions that count: all of `prose` and `repeats`, the answers' tokens of the others."""
    kl: float
    """Mean KL(dense || arm) of the next token's distribution over the scored predictions, nats;
    dense reads the same KV."""
    kl_p95: float
    """95th percentile of the same."""
    agreement: float
    """Share of scored predictions whose top token is dense's."""
    kl_full: float
    """As `kl`, against dense decode over the whole prompt; equal to it where nothing was pruned."""
    agreement_full: float
    """As `agreement`, against dense decode over the whole prompt."""
    accuracy: float
    """Share of scored predictions whose top token is the text's."""
    dense_accuracy: float
    """The same of dense over the same KV."""
    logprob: float
    """Mean log-probability of the text's token over the scored predictions, nats."""
    dense_logprob: float
    """The same of dense over the same KV."""
    attended: int
    """Token-layers read."""
    dense_attended: int
    """Token-layers that dense reads over the same KV."""
    unpruned_attended: int
    """Token-layers that dense reads over the whole prompt."""
    expected_attended: int
    """Token-layers by the formula: every slot in layers of roles W and D, min(budget, slots) in
    the others; 0 where the policy has no fixed count."""
    layer_recall: list[float | None]
    """For each layer the mean share of true attention mass that lies in what it read, over query
    heads and sampled steps; None in layers that read everything, and all None if not sampled."""
    recall_p10: float | None
    """10th percentile over sampled steps and sparse layers of the same share; None if none."""
    recency_share: float | None
    """Share of the slots read by sparse layers that lie in the arm's recent pages; None if none."""
    churn: float | None
    """Share of the units (pages, or slots) read by sparse layers that the same layer did not read
    one step earlier, over sampled pairs of steps; the newest unit is left out; None if none."""
    seconds: float
    """Wall time of the batch of arms that it ran in, divided by their number."""
    kl_blocks: list[float] = field(default_factory=list)
    """`kl` of each run of `BLOCK` scored predictions; a last shorter run is left out unless it is
    the only one. Arms of one text are compared block by block."""
    agreement_blocks: list[float] = field(default_factory=list)
    """`agreement` of the same runs."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (*self.sample_key, self.arm, self.budget, self.prefill, self.group)

    @property
    def sample_key(self) -> Key:
        """The text, whatever the arm."""
        return (self.kind, self.part, self.text, self.context, self.seed)

    @property
    def reduction(self) -> float:
        """Times fewer token-layers than dense over the same KV."""
        return self.dense_attended / self.attended

    @property
    def formula_deviation(self) -> float | None:
        """Relative deviation of `attended` from the formula; None without one."""
        if not self.expected_attended:
            return None
        return self.attended / self.expected_attended - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedleFact:
    """One needle question under one arm: parts needle and ablation.

    Questions that `full` does not answer have no fact of any other arm.
    """

    kind: ClassVar[str] = "needle"
    run: int
    """The run that measured it."""
    part: str
    """needle or ablation."""
    task: str
    """Name of the task, such as `niah_prose_4keys`."""
    length: int
    """Wanted prompt length, in tokens."""
    depth: float
    """Place of the needle, 0 to 1."""
    seed: int
    """Seed of the sample."""
    arm: str
    """The arm's label; `full` (whole prefill) and `dense` (same prefill) are among them."""
    budget: int
    """Its budget, in tokens."""
    prefill: str
    """Which prefill it continues."""
    group: str
    """What the arm is compared within."""
    prompt_tokens: int
    """L."""
    kept: int
    """Prompt slots of the last layer."""
    right: bool
    """Whether every token of the answer is the likeliest after those before it."""
    kl: float
    """Mean KL(dense || arm) over the answer's tokens after the first (which the prefill predicts),
    nats; dense reads the same KV; 0 for an answer of one token."""
    attended: int
    """Token-layers read."""
    dense_attended: int
    """Token-layers that dense reads over the same KV."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (*self.sample_key, self.arm, self.budget, self.prefill, self.group)

    @property
    def sample_key(self) -> Key:
        """The question, whatever the arm."""
        return (self.kind, self.part, self.task, self.length, self.depth, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFact:
    """A free generation under one arm, scored by dense decode over the same KV."""

    kind: ClassVar[str] = "generation"
    run: int
    """The run that measured it."""
    text: str
    """What it continues."""
    context: int
    """Prompt tokens."""
    seed: int
    """Number of the text window."""
    temperature: float
    """0: greedy."""
    arm: str
    """The arm's label; `dense` is one of them."""
    budget: int
    """Its budget, in tokens."""
    tokens: int
    """Tokens generated; an end-of-text token does not stop it."""
    logprob: float
    """Mean log-probability of its tokens under dense decode that reads the same tokens, nats."""
    logprob_curve: list[float]
    """The same for each run of 256 tokens; the last may be shorter."""
    agreement: float
    """Share of steps at which dense, after the same tokens, has the same top token as the arm."""
    kl: float
    """Mean KL(dense || arm) after the same tokens, nats."""
    eos_at: int | None
    """Index of the first end-of-text token; None if there is none."""
    diverges_at: int | None
    """Index of the first token that differs from dense's own generation; None if none does."""
    distinct: float
    """Share of its 8-token runs that are distinct: near 0 when it goes in circles."""
    attended: int
    """Token-layers read."""
    dense_attended: int
    """Token-layers that dense reads for the same tokens."""
    token_ids: list[int]
    """The generation."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (
            self.kind, self.text, self.context, self.seed, self.temperature, self.arm, self.budget
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PageStripFact:
    """Which pages one layer read over a generation: a picture of steps x pages."""

    kind: ClassVar[str] = "strip"
    run: int
    """The run that measured it."""
    text: str
    """What is continued."""
    context: int
    """Prompt tokens."""
    seed: int
    """Number of the text window."""
    temperature: float
    """0: greedy."""
    arm: str
    """The arm's label."""
    budget: int
    """Its budget, in tokens."""
    layer: int
    """The layer; 0-based."""
    planner: int | None
    """The Δ-layer that chooses for it; None if it chooses for itself."""
    steps: list[int]
    """Steps shown, ascending; 0 is the first."""
    num_pages: list[int]
    """Pages of the row in that layer at each of them."""
    pages: list[list[int]]
    """Logical pages read at each of them, ascending; of a choice by head or slot every page of
    which something was read."""
    refreshed: list[bool]
    """Whether the choice was made anew at each of them (False between the refreshes of temporal
    reuse)."""

    @property
    def key(self) -> Key:
        """Everything that decides the outcome."""
        return (
            self.kind, self.text, self.context, self.seed, self.temperature, self.arm, self.budget,
            self.layer,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFact:
    """The curves that the profile's Δ-layers were chosen by, as its evidence has them."""

    kind: ClassVar[str] = "calibration"
    run: int
    """The run whose profile it is."""
    curves: Mapping[str, Any]
    """The profile's table `evidence.sparsity`."""

    @property
    def key(self) -> Key:
        """One a folder: all its runs share the page selection."""
        return (self.kind,)


SparsityFact = (
    Run | ArmFact | ForcedFact | NeedleFact | GenerationFact | PageStripFact | CalibrationFact
)
_KINDS = (ArmFact, ForcedFact, NeedleFact, GenerationFact, PageStripFact, CalibrationFact)


def open_store(folder: Path, *, resume: bool) -> FactStore:
    """The results file of a folder.

    Raises:
        ConfigError: results are there and `resume` is not set, or a line cannot be read.
    """
    return FactStore(folder, kinds=_KINDS, resume=resume)


def merge_folders(folders: Sequence[Path], *, out: Path) -> int:
    """Writes what several folders hold into a new one; of equal keys the first counts.

    Args:
        folders: results of one model, type and profile, such as of a process a policy.
        out: a folder without results.

    Returns:
        How many facts it wrote beside the runs.

    Raises:
        ConfigError: a folder has no results, `out` has some, or they are of different models, types
            or profiles.
    """
    return merge_facts(folders, store=open_store(out, resume=False), kinds=_KINDS)


def read_facts(folder: Path) -> list[SparsityFact]:
    """Every fact of a folder in the order of writing; of equal keys the first.

    Raises:
        ConfigError: a line cannot be read.
    """
    return [fact for fact in facts_of(folder, kinds=_KINDS) if isinstance(fact, SparsityFact)]

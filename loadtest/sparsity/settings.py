"""Sizes of a study of page policies."""

from dataclasses import dataclass

from loadtest.sparsity.records import ABLATION, LONG, NEEDLE, PARTS, PRUNED, TEACHER, WHOLE
from shared.errors import ConfigError
from shared.types.page_policies import PagePolicyName

BUDGETS = (16, 32, 64)
"""Pages: 256, 512 and 1,024 tokens."""

LEAST_PAGES = 3
"""Smallest page budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """What a study runs, and on how much."""

    parts: tuple[str, ...] = (TEACHER, NEEDLE)
    """Which parts run."""
    policies: tuple[str, ...] = ()
    """Page policies compared; empty: all."""
    budgets: tuple[int, ...] = BUDGETS
    """Page budgets of the policies, in pages."""
    keep_rate: float = 0.2
    """Keep rate of the pruned prefills."""
    windows: int = 2
    """Windows of prose of the teacher part; each continues another piece of text."""
    context: int = 4096
    """Prompt tokens of a window."""
    steps: int = 384
    """Decode steps of a window."""
    sample_every: int = 48
    """Steps between two at which recall, churn and the share of recent slots are looked at."""
    needle_lengths: tuple[int, ...] = (2048, 4096)
    """Prompt lengths of the needle questions, in tokens."""
    needle_prefills: tuple[str, ...] = (PRUNED, WHOLE)
    """Prefills whose decoding is asked: after pruning few slots are left, of a whole prompt all."""
    needle_answers: int = 48
    """Questions that full and dense after pruning must both answer before the part ends."""
    needle_prompts: int = 400
    """Questions that are tried at most."""
    long_samples: int = 1
    """Texts of each kind of the long part; one kind has the teacher part's sizes."""
    long_budgets: tuple[int, ...] = (16, 64)
    """Page budgets of the long part, in pages."""
    long_context: int = 128
    """Prompt tokens of the long texts: nearly all of a text counts as generated."""
    long_steps: int = 3072
    """Decode steps of the long texts at most."""
    generation_tokens: int = 6000
    """Tokens of a free generation."""
    generation_context: int = 1024
    """Prompt tokens before it."""
    generation_windows: int = 1
    """Prompts that are continued; each is another piece of prose."""
    generation_pages: int = 64
    """Its page budget."""
    generation_policies: tuple[str, ...] = ("delta",)
    """Page policies that generate, beside dense."""
    temperature: float = 0.0
    """0: greedy. Above it all arms draw with the same random numbers."""
    strip_layers: tuple[int, ...] = ()
    """Layers whose pages are kept for a picture; empty: the first sparse layer after each Δ-layer,
    and the last layer."""
    strip_steps: int = 250
    """Steps that such a picture shows at most."""
    ablation_steps: int = 256
    """Decode steps of a window of the ablations."""
    ablation_windows: int = 1
    """Windows of prose of the ablations."""
    ablation_pages: int = 64
    """Page budget of ablations over a whole prefill, unless they vary it."""
    pruned_pages: int = 16
    """Page budget of ablations over a pruned prefill."""
    ablation_answers: int = 32
    """Questions that full must answer in the ablations over a pruned prefill."""
    full_layers: tuple[tuple[int, ...], ...] = ()
    """Further sets F to be put on the frontier, such as a calibration's."""
    max_seconds: float | None = None
    """Nothing new is begun after this time; None: no limit."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown:
            raise ConfigError(f"unknown part {unknown[0]!r}: known are {', '.join(PARTS)}")
        names = [name.value for name in PagePolicyName]
        strangers = sorted({*self.policies, *self.generation_policies} - set(names))
        if strangers:
            raise ConfigError(f"unknown page policy {strangers[0]!r}: known are {', '.join(names)}")
        others = sorted(set(self.needle_prefills) - {PRUNED, WHOLE})
        if others or not self.needle_prefills:
            raise ConfigError(
                f"needle prefills are {', '.join(self.needle_prefills) or 'none'}: choose among "
                f"{PRUNED} and {WHOLE}"
            )
        self._check_pages()
        if not self.temperature >= 0.0:
            raise ConfigError(f"temperature is {self.temperature}: choose 0, greedy, or more")
        if not 0.0 < self.keep_rate < 1.0:
            raise ConfigError(f"keep_rate is {self.keep_rate}: choose above 0 and below 1")
        counts = {
            "windows": self.windows,
            "context": self.context,
            "steps": self.steps,
            "sample_every": self.sample_every - 1,
            "needle answers": self.needle_answers,
            "needle prompts": self.needle_prompts,
            "long samples": self.long_samples,
            "long context": self.long_context,
            "long steps": self.long_steps,
            "generation tokens": self.generation_tokens - 1,
            "generation context": self.generation_context,
            "generation windows": self.generation_windows,
            "strip steps": self.strip_steps,
            "ablation steps": self.ablation_steps,
            "ablation windows": self.ablation_windows,
            "ablation answers": self.ablation_answers,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is too small: raise it")

    def _check_pages(self) -> None:
        """Before hours of other parts: what some part would find out when its turn comes."""
        budgets = {
            "budgets": self.budgets,
            "long budgets": self.long_budgets,
            "generation pages": (self.generation_pages,),
            "ablation pages": (self.ablation_pages,),
            "pruned pages": (self.pruned_pages,),
        }
        for name, pages in budgets.items():
            if min(pages, default=0) < LEAST_PAGES:
                raise ConfigError(
                    f"{name} are {', '.join(map(str, pages)) or 'none'}: a page budget is "
                    f"{LEAST_PAGES} pages or more, page 0, a recent and a chosen one"
                )
        for layers in self.full_layers:
            if layers[:1] != (0,) or sorted(set(layers)) != list(layers):
                raise ConfigError(
                    f"full layers are {','.join(map(str, layers)) or 'none'}: a set is ascending "
                    "and begins with layer 0"
                )

    def longest(self) -> int:
        """Positions that the chosen parts need."""
        needs = {
            TEACHER: self.context + self.steps,
            NEEDLE: max(self.needle_lengths, default=0) + 24,
            LONG: max(self.long_context + self.long_steps, self.context + self.steps),
            ABLATION: self.context + self.ablation_steps,
        }
        return max(
            (needs.get(p, self.generation_context + self.generation_tokens) for p in self.parts),
            default=0,
        )

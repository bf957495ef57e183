"""What an evaluation is asked to do, whoever asks: the command line or the plain script."""

from dataclasses import dataclass
from pathlib import Path

from loadtest.quality.shard import WHOLE, Shard
from loadtest.quality.tasks.needle import FIVE_DEPTHS, MIXTURE_LENGTHS
from loadtest.quality.tasks.sample import Protocol
from shared.errors import ConfigError

PARTS = ("timing", "mixture", "needle", "ruler", "ablation", "correlation", "longbench")
"""Parts of the study, in the order in which they run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """Sizes of a study."""

    parts: tuple[str, ...] = PARTS[:-1]
    """Which parts run."""
    rankers: tuple[str, ...] = ()
    """Methods compared, beside full and the controls; empty: all."""
    keep: tuple[float, ...] = (0.1, 0.2, 0.4)
    """Keep rates."""
    lengths: tuple[int, ...] = (1024, 2048, 4096)
    """Prompt lengths of the needle grid, in tokens."""
    depths: tuple[float, ...] = FIVE_DEPTHS
    """Depths of the needle grid."""
    seeds: int = 4
    """Samples of each cell of the needle grid."""
    protocols: tuple[Protocol, ...] = (Protocol.QUESTION_INCLUDED,)
    """What rankers see, in the needle, RULER and LongBench parts."""
    ruler_length: int = 2048
    """Tokens of a RULER prompt and its answer."""
    ruler_samples: int = 8
    """Prompts of each RULER task."""
    mixture_lengths: tuple[int, ...] = MIXTURE_LENGTHS
    """Prompt lengths of the mixture, in tokens."""
    mixture_answers: int = 150
    """Prompts of 2k tokens and more that full must answer before the mixture ends."""
    mixture_prompts: int = 800
    """Prompts of the mixture, and of the ablations, that are tried at most."""
    floors: tuple[int, ...] = (128, 256, 384, 512)
    """Floors on the kept count that are tried on the mixture, beside the profile's."""
    ablation_lengths: tuple[int, ...] = (2048, 4096)
    """Prompt lengths of the ablations."""
    ablation_answers: int = 60
    """Prompts that full answers, in the ablations."""
    correlation_samples: int = 8
    """Prompts of each task in the correlation part."""
    timing_lengths: tuple[int, ...] = (4096, 7168)
    """Prompt lengths that are timed."""
    timing_repeats: int = 5
    """Timed runs of each arm."""
    longbench: Path | None = None
    """Folder of LongBench's files."""
    longbench_samples: int | None = None
    """Records of each LongBench file; None: all."""
    longbench_tokens: int | None = None
    """Longest LongBench prompt; None: what the model's context allows."""
    shard: Shard = WHOLE
    """Which prompts of each part are measured; shards take no times."""
    max_seconds: float | None = None
    """No new prompts are begun after this time; None: no limit."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.parts) - set(PARTS))
        if unknown:
            raise ConfigError(f"unknown part {unknown[0]!r}: known are {', '.join(PARTS)}")
        if "longbench" in self.parts and self.longbench is None:
            raise ConfigError(
                "LongBench needs its official files: they are not shipped; name their folder"
            )
        if self.shard.count > 1 and "timing" in self.parts:
            raise ConfigError(
                "a shard takes no times, as the others would slow its clock: name the other parts "
                "(--parts mixture,needle,...), and run timing by itself, without --shard"
            )
        counts = {
            "seeds": self.seeds,
            "ruler samples": self.ruler_samples,
            "mixture prompts": self.mixture_prompts,
            "mixture answers": self.mixture_answers,
            "ablation answers": self.ablation_answers,
            "correlation samples": self.correlation_samples,
            "timing repeats": self.timing_repeats,
        }
        for name, count in counts.items():
            if count < 1:
                raise ConfigError(f"{name} is {count}: at least 1 is needed")

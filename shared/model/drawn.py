"""Weights that a folder does not hold: every worker draws the same ones on its own device.

A model of 8 billion weights takes 16 GB on disk and a minute to read; drawn, it is there in
seconds. Its speed is that of a checkpoint of the shape, its text is noise.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.config import ModelConfig, read_json
from shared.model.folder import DRAWN_FILE
from shared.model.random import random_tensors
from shared.model.state import DTYPES, build_transformer
from shared.model.transformer import Transformer

SEEDS = 1 << 63
"""Seeds are below this: every one of them is a seed of torch's generators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnWeights:
    """What weights are drawn from, beside the shape in config.json.

    Raises:
        ConfigError: no generator takes such a seed.
    """

    seed: int = 0
    """Of the generator, 0 to `SEEDS` - 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ConfigError(
                f"a model cannot be drawn from seed {self.seed}: give --seed 0 to {SEEDS - 1}",
                param="seed",
            )

    @classmethod
    def of_folder(cls, folder: Path) -> "DrawnWeights | None":
        """What the folder says; None when its weights are in files.

        Raises:
            ModelLoadError: it says something else than a seed.
        """
        path = folder / DRAWN_FILE
        if not path.is_file():
            return None
        raw = read_json(path)
        seed = raw.get("seed")
        if set(raw) != {"seed"} or type(seed) is not int or not 0 <= seed < SEEDS:
            raise ModelLoadError(
                f"{path} holds {raw!r} instead of one seed of 0 or more: it was edited or is of "
                "another version; write the folder again with `tandem model random`"
            )
        return cls(seed=seed)

    def to_json(self) -> str:
        """Text of the file that `of_folder` reads."""
        return json.dumps(asdict(self)) + "\n"


def draw_model(
    config: ModelConfig, weights: DrawnWeights, *, dtype: str, device: str
) -> Transformer:
    """Draws the model where it will run, in the type that it will have.

    Args:
        config: shape.
        weights: what to draw from.
        dtype: name of the type.
        device: PyTorch device.
    """
    return build_transformer(
        config,
        random_tensors(config, seed=weights.seed, device=device, dtype=DTYPES[dtype]),
        dtype=DTYPES[dtype],
        model_hash=drawn_hash(config, weights, dtype=dtype, device=device),
        device=device,
    )


def drawn_hash(config: ModelConfig, weights: DrawnWeights, *, dtype: str, device: str) -> str:
    """Hex SHA-256 over all that the drawn values depend on.

    A CPU and a CUDA device draw different values from one seed, and so do CUDA devices of unlike
    size and may two versions of PyTorch; workers whose weights differ so must not be paired.
    """
    parts = [config.to_dict(), asdict(weights), dtype, _drawer(device), torch.__version__]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _drawer(device: str) -> str:
    """What draws alike: PyTorch lays a draw out over as many threads as a GPU's processors run."""
    kind = torch.device(device).type
    if kind != "cuda":
        return kind
    gpu = torch.cuda.get_device_properties(device)
    threads = gpu.multi_processor_count * gpu.max_threads_per_multi_processor
    return f"{kind}, {threads} threads"

"""Loads a model: a folder, a GGUF file, a catalog name or a hub id, to memory on a device."""

from dataclasses import dataclass
from pathlib import Path

import torch

from shared.errors import ConfigError, ModelLoadError
from shared.model.catalog import resolve
from shared.model.config import ModelConfig
from shared.model.drawn import DrawnWeights, draw_model
from shared.model.model_hash import model_hash
from shared.model.profile import load_profile
from shared.model.profile_record import ModelProfile
from shared.model.progress import ProgressFn, silent
from shared.model.safetensors_folder import find_tensors
from shared.model.state import DTYPES, build_transformer, check_tensors, tensor_shapes
from shared.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model ready to run."""

    model: Transformer
    """Weights in memory."""
    name: str
    """Default served name: the catalog name, hub id, or folder name."""
    folder: Path
    """Standard folder it came from."""
    profile: ModelProfile
    """Parameters of the two methods for this model."""


def load_model(
    spec: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    cache_dir: Path | None = None,
    profile: str = "",
    progress: ProgressFn = silent,
) -> LoadedModel:
    """Resolves `spec` (pulling or converting it when needed) and loads it.

    Args:
        spec: folder, .gguf file, catalog name or hub id.
        dtype: float32 or bfloat16, whatever the checkpoint stores.
        device: PyTorch device.
        cache_dir: None takes the default cache.
        profile: profile name or TOML path; empty chooses by the checkpoint's hash, then shape.
        progress: told about downloads and conversions.

    Raises:
        ModelLoadError: the model cannot be had, read or placed on the device.
        ConfigError: the profile is unknown or does not fit the model.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(
            f"dtype {dtype!r} is not served; the decoder runs in {' or '.join(DTYPES)}; choose "
            "one of these"
        )
    _check_device(device)
    folder = resolve(spec, cache_dir, progress=progress)
    model = load_folder(folder, dtype=dtype, device=device, cache_dir=cache_dir)
    name = _served_name(spec)
    return LoadedModel(
        model=model,
        name=name,
        folder=folder,
        profile=load_profile(
            profile,
            config=model.config,
            model_hash=model.identity(name).model_hash,
            cache_dir=cache_dir,
        ),
    )


def load_folder(
    folder: Path, *, dtype: str = "float32", device: str = "cpu", cache_dir: Path | None = None
) -> Transformer:
    """Loads a standard folder; float32 matrices that need no fusing stay memory-mapped.

    Weights that the folder says how to draw are drawn on the device.

    Raises:
        ModelLoadError: files or tensors are missing, damaged or of another shape.
    """
    config = ModelConfig.from_folder(folder)
    drawn = DrawnWeights.of_folder(folder)
    if drawn is not None:
        return draw_model(config, drawn, dtype=dtype, device=device)
    found = find_tensors(folder)
    check_tensors(config, found.shapes(), source=str(folder))
    return build_transformer(
        config,
        found.read(set(tensor_shapes(config))),
        dtype=DTYPES[dtype],
        model_hash=model_hash(config, found.paths, cache_dir=cache_dir),
        device=device,
    )


def _served_name(spec: str) -> str:
    path = Path(spec).expanduser()
    if path.is_dir():
        return path.resolve().name
    return path.stem if path.suffix == ".gguf" else spec


def _check_device(device: str) -> None:
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {device!r} is not one of PyTorch's; use cpu, cuda or cuda:N"
        ) from error
    if wanted.type != "cuda":
        return
    if not torch.cuda.is_available():
        raise ModelLoadError(
            f"device {device!r} was asked for, but PyTorch sees no CUDA device: there is no GPU, "
            "no driver, or a "
            "CPU-only PyTorch; use --device cpu or install a CUDA build",
            code="no_device",
        )
    if (wanted.index or 0) >= torch.cuda.device_count():
        raise ModelLoadError(
            f"device {device!r} does not exist: PyTorch sees {torch.cuda.device_count()} CUDA "
            "devices, counted from 0; choose one of them",
            code="no_device",
        )

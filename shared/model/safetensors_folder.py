"""Reads the weights of a standard folder, in one file or in shards."""

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.errors import ModelLoadError
from shared.model.config import read_json
from shared.model.folder import INDEX_FILE, WEIGHTS_FILE


@dataclass(frozen=True, slots=True)
class TensorFiles:
    """Which file of a folder holds which tensor."""

    folder: Path
    """The model folder."""
    files: dict[str, Path]
    """Tensor name to file."""

    @property
    def paths(self) -> list[Path]:
        """Every weight file once, sorted by name."""
        return sorted(set(self.files.values()))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, without reading them."""
        out: dict[str, tuple[int, ...]] = {}
        for path in self.paths:
            with _open(path) as file:
                for name in file.keys():  # noqa: SIM118 - a handle, not a mapping
                    out[name] = tuple(file.get_slice(name).get_shape())
        return out

    def read(self, names: set[str]) -> dict[str, Tensor]:
        """The named tensors, on the CPU; files are memory-mapped.

        Raises:
            ModelLoadError: a file is damaged.
        """
        out: dict[str, Tensor] = {}
        for path in self.paths:
            with _open(path) as file:
                out |= {name: file.get_tensor(name) for name in file.keys() if name in names}  # noqa: SIM118
        return out


def find_tensors(folder: Path) -> TensorFiles:
    """Looks for model.safetensors or its sharded index.

    Raises:
        ModelLoadError: neither exists, a shard is missing, or a file is damaged.
    """
    index = folder / INDEX_FILE
    if index.is_file():
        return TensorFiles(folder, _sharded(folder, index))
    single = folder / WEIGHTS_FILE
    if not single.is_file():
        raise ModelLoadError(
            f"{folder} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}: the download was cut short, "
            "or the weights "
            "are in another format; pull the model again, or convert it to safetensors"
        )
    with _open(single) as file:
        return TensorFiles(folder, dict.fromkeys(file.keys(), single))


def _sharded(folder: Path, index: Path) -> dict[str, Path]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(
            f"{index} has no weight_map: the file is damaged; pull the model again"
        )
    missing = sorted({name for name in weight_map.values() if not (folder / name).is_file()})
    if missing:
        raise ModelLoadError(
            f"{folder} lacks {len(missing)} weight shards ({', '.join(missing[:3])}): the "
            "download was cut short; "
            "pull the model again"
        )
    return {tensor: folder / name for tensor, name in weight_map.items()}


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(
            f"{path} is not a readable safetensors file ({error}): the download was cut short or "
            "the disk is full; "
            "delete it and pull the model again"
        ) from error

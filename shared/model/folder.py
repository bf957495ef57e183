"""The standard model folder, written so that no half of one is ever seen."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from shared.model.config import ModelConfig

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CHECKSUM_FILE = "checksums.json"
DRAWN_FILE = "drawn_weights.json"
"""Instead of weights: what every worker draws them from."""


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """A temporary neighbour of `target` that takes its name when the block ends without an error.

    When another process put a complete folder there meanwhile, that one stays and ours is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield work
        _take_place(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def write_model(
    folder: Path,
    *,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    tokenizer_json: str,
    tokenizer_config: Mapping[str, Any],
) -> None:
    """Fills `folder` with the standard files and their checksums; dtype of the tensors is kept."""
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    _write_texts(
        folder,
        config={**config.to_dict(), "dtype": dtype},
        generation=_generation(config),
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
    )
    save_file(dict(tensors), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    _share_mode(folder, folder / WEIGHTS_FILE)
    _write_checksums(folder)


def write_drawn(
    folder: Path,
    *,
    config: ModelConfig,
    drawn: str,
    tokenizer_json: str,
    tokenizer_config: Mapping[str, Any],
) -> None:
    """Fills `folder` like `write_model`, with `drawn` in the place of the weights."""
    _write_texts(
        folder,
        config=config.to_dict(),
        generation=_generation(config),
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
    )
    (folder / DRAWN_FILE).write_text(drawn, encoding="utf-8")
    _share_mode(folder)
    _write_checksums(folder)


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _generation(config: ModelConfig) -> dict[str, Any]:
    return {"bos_token_id": config.bos_token_id, "eos_token_id": list(config.eos_token_ids)}


def _write_texts(
    folder: Path,
    *,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tokenizer_json: str,
    tokenizer_config: Mapping[str, Any],
) -> None:
    _write_json(folder / CONFIG_FILE, config)
    _write_json(folder / GENERATION_FILE, generation)
    _write_json(folder / TOKENIZER_CONFIG_FILE, tokenizer_config)
    (folder / TOKENIZER_FILE).write_text(tokenizer_json, encoding="utf-8")


def _write_checksums(folder: Path) -> None:
    sums = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    _write_json(folder / CHECKSUM_FILE, sums)


def _share_mode(folder: Path, *private: Path) -> None:
    """Gives files that come as 0600, and the folder, the rights that the umask grants."""
    mode = (folder / CONFIG_FILE).stat().st_mode & 0o666
    for path in private:
        path.chmod(mode)
    folder.chmod(mode | 0o100 | (mode & 0o044) >> 2)


def _take_place(work: Path, target: Path) -> None:
    try:
        os.replace(work, target)
    except OSError:
        if not (target / CHECKSUM_FILE).exists():
            shutil.rmtree(target)
            os.replace(work, target)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

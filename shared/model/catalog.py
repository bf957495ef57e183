"""From what a user writes (a folder, a GGUF file, a name, a hub id) to a standard model folder."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ModelLoadError
from shared.model.config import read_json
from shared.model.embedded import EMBEDDED, EmbeddedModel, gguf_of
from shared.model.folder import (
    CHECKSUM_FILE,
    CONFIG_FILE,
    DRAWN_FILE,
    INDEX_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    file_sha256,
    fresh_folder,
    write_model,
)
from shared.model.hub import link_snapshot
from shared.model.progress import Progress, ProgressFn, silent
from shared.model.state import check_tensors
from shared.model.tokenizer_build import build_tokenizer, tokenizer_config, tokenizer_json
from shared.tokenizer.folder import default_cache_dir, model_cache_folder

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One line of `tandem model list`."""

    name: str
    """What --model takes."""
    folder: Path | None
    """Where it is cached; None: not pulled yet."""
    size_bytes: int
    """Bytes on disk; 0 when not pulled."""
    note: str
    """What it is."""


def resolve(spec: str, cache_dir: Path | None = None, *, progress: ProgressFn = silent) -> Path:
    """The complete standard folder of `spec`, pulled or converted first where needed.

    Raises:
        ModelLoadError: there is no such model, or it cannot be had or read.
    """
    given = Path(spec).expanduser()
    if given.is_dir():
        return complete(given)
    if given.suffix == ".gguf":
        return _converted(given, cache_dir, progress=progress)
    cached = model_cache_folder(spec, cache_dir)
    if not is_complete(cached):
        pull(spec, cache_dir=cache_dir, progress=progress)
    return complete(cached)


def pull(name: str, *, cache_dir: Path | None = None, progress: ProgressFn = silent) -> Path:
    """Fetches a model by catalog name or hub id; a whole one in the cache is checked and kept.

    Raises:
        ModelLoadError: the name is unknown, or fetching or conversion failed.
    """
    target = model_cache_folder(name, cache_dir)
    if name in EMBEDDED:
        if not is_complete(target) or damaged_files(target):
            _pull_embedded(EMBEDDED[name], target, progress=progress)
        return target
    if _HUB_ID.fullmatch(name):
        link_snapshot(name, target, progress=progress)
        return complete(target)
    raise ModelLoadError(
        f"model {name!r} is unknown: it is no folder, no .gguf file, no hub id (owner/name), and "
        "the catalog "
        f"has {', '.join(EMBEDDED)}; check the spelling"
    )


def list_models(cache_dir: Path | None = None) -> list[CatalogModel]:
    """The catalog's models, pulled or not, then every other model in the cache."""
    out = [
        _listed(name, model_cache_folder(name, cache_dir), EMBEDDED[name].note) for name in EMBEDDED
    ]
    root = (cache_dir if cache_dir is not None else default_cache_dir()) / "models"
    folders = sorted(root.iterdir()) if root.is_dir() else []
    out += [
        _listed(folder.name.replace("--", "/"), folder, "in the cache")
        for folder in folders
        if folder.name not in EMBEDDED and not folder.name.startswith(".") and is_complete(folder)
    ]
    return out


def is_complete(folder: Path) -> bool:
    """Whether configuration, tokenizer and weights are there."""
    weights = any((folder / name).is_file() for name in (WEIGHTS_FILE, INDEX_FILE, DRAWN_FILE))
    return weights and all((folder / name).is_file() for name in (CONFIG_FILE, TOKENIZER_FILE))


def complete(folder: Path) -> Path:
    """Returns `folder`.

    Raises:
        ModelLoadError: a file that every model folder has is missing.
    """
    if not is_complete(folder):
        wanted = (CONFIG_FILE, TOKENIZER_FILE, WEIGHTS_FILE)
        missing = [name for name in wanted if not (folder / name).is_file()]
        raise ModelLoadError(
            f"the model folder {folder} is incomplete (no {', '.join(missing)}): the download was "
            "cut short or it is "
            "not a model folder; pull the model again or name another folder"
        )
    return folder


def damaged_files(folder: Path) -> list[str]:
    """Names of files that differ from the checksums written with them; empty without checksums."""
    if not (folder / CHECKSUM_FILE).is_file():
        return []
    sums = read_json(folder / CHECKSUM_FILE)
    return [
        name
        for name, wanted in sums.items()
        if not (folder / name).is_file() or file_sha256(folder / name) != wanted
    ]


def convert_gguf(source: Path, target: Path, *, progress: ProgressFn = silent) -> Path:
    """Turns a GGUF file into a standard float32 folder, whole or not at all.

    Raises:
        ModelLoadError: the file cannot be read or is of an unsupported architecture.
    """
    from shared.model.gguf_file import GgufFile  # noqa: PLC0415  only this needs package gguf

    gguf = GgufFile(source)
    config = gguf.config()
    vocabulary = gguf.vocabulary(config)
    tokenizer = build_tokenizer(vocabulary)
    tensors = gguf.tensors(config, progress=_stage(progress, "dequantise"))
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_tensors(config, shapes, source=str(source))
    progress(Progress("write", 0, 1))
    with fresh_folder(target) as folder:
        write_model(
            folder,
            config=config,
            tensors=tensors,
            tokenizer_json=tokenizer_json(tokenizer),
            tokenizer_config=tokenizer_config(vocabulary),
        )
    progress(Progress("write", 1, 1))
    return target


def _pull_embedded(model: EmbeddedModel, target: Path, *, progress: ProgressFn) -> None:
    with gguf_of(model, progress=progress) as source:
        if is_complete(target):
            (target / CHECKSUM_FILE).unlink(missing_ok=True)
        convert_gguf(source, target, progress=progress)


def _converted(source: Path, cache_dir: Path | None, *, progress: ProgressFn) -> Path:
    """The cached conversion of exactly this file (path, size, time of change)."""
    try:
        stat = source.stat()
    except OSError as error:
        raise ModelLoadError(
            f"{source} cannot be opened ({error.strerror}): the path is wrong or unreadable; "
            "check it"
        ) from error
    key = f"{source.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    name = f"{source.stem}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
    target = model_cache_folder(name, cache_dir)
    return target if is_complete(target) else convert_gguf(source, target, progress=progress)


def _listed(name: str, folder: Path, note: str) -> CatalogModel:
    if not is_complete(folder):
        return CatalogModel(name=name, folder=None, size_bytes=0, note=note)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return CatalogModel(name=name, folder=folder, size_bytes=size, note=note)


def _stage(progress: ProgressFn, name: str) -> Callable[[int, int], None]:
    return lambda done, total: progress(Progress(name, done, total))

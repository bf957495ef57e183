"""The hash that two workers compare before KV moves between them."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from shared.model.config import ModelConfig
from shared.model.folder import file_sha256
from shared.tokenizer.folder import default_cache_dir

_REMEMBER_BYTES = 64 * 2**20
"""Below this, hashing is quicker than it is worth a file."""


def model_hash(config: ModelConfig, files: list[Path], *, cache_dir: Path | None = None) -> str:
    """Hex SHA-256 over the configuration and the bytes of the weight files.

    Hashing takes seconds for large models, so the result is kept in `<cache>/hashes`, under a key
    of every file's path, size and time of change.
    """
    shape = json.dumps(config.to_dict(), sort_keys=True)
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(json.dumps([shape, stats]).encode()).hexdigest()
    root = cache_dir if cache_dir is not None else default_cache_dir()
    memo = root / "hashes" / key
    if memo.is_file():
        return memo.read_text(encoding="ascii")
    digest = hashlib.sha256(shape.encode())
    for path in files:
        digest.update(bytes.fromhex(file_sha256(path)))
    if sum(size for _, size, _ in stats) >= _REMEMBER_BYTES:
        _remember(memo, digest.hexdigest())
    return digest.hexdigest()


def _remember(memo: Path, value: str) -> None:
    memo.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=memo.parent)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(value)
    Path(name).replace(memo)

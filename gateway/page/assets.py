"""The page's files, read once: a request never touches the file system."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath

_INDEX = "index.html"
_VERSION_MARK = b"@VERSION@"
_VERSION_CHARS = 16

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    content: bytes
    """What is sent."""
    media_type: str
    """Its content type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAssets:
    """All files of the page."""

    version: str
    """Hash over all files; part of their addresses, so that caches may keep them for ever."""
    index: Asset
    """The document, whose links name `version`."""
    files: dict[str, Asset]
    """Scripts, style and icon by name."""


def load_assets() -> PageAssets:
    """Reads the files beside this module.

    Raises:
        KeyError: a file of a kind that the page does not use.
    """
    folder = resources.files("gateway.page") / "static"
    raw = {
        entry.name: entry.read_bytes()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
    }
    digest = hashlib.sha256()
    for name, content in raw.items():
        digest.update(f"{name}:{len(content)}:".encode() + content)
    version = digest.hexdigest()[:_VERSION_CHARS]
    assets = {
        name: Asset(content, _TYPES[PurePosixPath(name).suffix]) for name, content in raw.items()
    }
    document = assets.pop(_INDEX)
    index = Asset(document.content.replace(_VERSION_MARK, version.encode()), document.media_type)
    return PageAssets(version=version, index=index, files=assets)

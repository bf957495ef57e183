"""Which version of Tandem runs; reads installed metadata, imports nothing of it."""

from functools import cache
from importlib import metadata

PACKAGE = "tandem-llm"
"""Distribution name."""


@cache  # reading metadata from disk takes longer than many a request has
def package_version() -> str:
    """Version of the installed package; `source` when it runs from a folder without one."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        return "source"

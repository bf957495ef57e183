"""Prints what pyproject.toml depends on, with the extras that are named; builds images in layers.

Packages change less often than sources, so they are installed before those are copied.
"""

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: list[str]) -> list[str]:
    """Requirement lines of a pyproject.toml.

    Args:
        project: the file.
        extras: names of optional dependencies; an unknown one is a KeyError.
    """
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    optional = table["optional-dependencies"]
    return [*table["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")

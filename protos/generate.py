"""Makes the stubs beside the .proto files, or checks that they are current.

python -m protos.generate            writes *_pb2.py, *_pb2_grpc.py and their .pyi
python -m protos.generate --check    exits 1 and names the files that differ
"""

import argparse
import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
VERSION_DIR = Path("protos/tandem/v1")


def generate(out: Path) -> list[Path]:
    """Writes the stubs of every .proto file under `out`; returns their paths relative to it.

    The repository root is the include path, so the imports in the stubs are right as they stand.
    """
    sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / VERSION_DIR).glob("*.proto"))
    arguments = ["protoc", f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
    arguments += [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    beside_python = Path(
        sys.executable
    ).parent  # plugins are found without an activated environment
    arguments += [
        f"--plugin=protoc-gen-{kind}={beside_python / f'protoc-gen-{kind}'}"
        for kind in ("mypy", "mypy_grpc")
    ]
    status = protoc.main([*arguments, *sources])
    if status != 0:
        sys.exit(f"protoc failed with status {status}; its message is above")
    return sorted(p.relative_to(out) for p in (out / VERSION_DIR).glob("*_pb2*"))


def stale() -> list[Path]:
    """Paths of stubs that are missing, differ, or have no .proto file any more."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        differing = [
            path
            for path in fresh
            if not (ROOT / path).is_file()
            or not filecmp.cmp(ROOT / path, Path(scratch) / path, shallow=False)
        ]
    committed = {p.relative_to(ROOT) for p in (ROOT / VERSION_DIR).glob("*_pb2*.py*")}
    return sorted({*differing, *(committed - set(fresh))})


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m protos.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    differing = stale()
    for path in differing:
        sys.stderr.write(f"{path} is not what its .proto file gives; run `make protos`\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

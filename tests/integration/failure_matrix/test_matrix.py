"""The table of failures names tests that exist, for every failure that the design knows."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = (
    "P refuses or its queue is full",
    "P dies before seal",
    "P dies after commit",
    "D refuses or dies before commit",
    "D dies mid-stream",
    "transfer error or crc",
    "client leaves: queued",
    "client leaves: streaming",
    "client leaves: decode",
    "gateway dies",
    "heartbeat lost, both alive",
    "drain",
    "stuck",
)
"""The failure matrix of the design, in its order."""

_LINK = re.compile(r"`([\w/]+\.py)::(\w+)`")


def table() -> dict[str, list[tuple[str, str]]]:
    """(file, test) pairs by row."""
    rows = {}
    for line in (HERE / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "row":
            rows[cells[0]] = _LINK.findall(cells[-1])
    return rows


def functions_of(path: Path) -> set[str]:
    """Names of the functions in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, functions)}


def test_every_row_is_there_and_has_tests() -> None:
    assert tuple(table()) == ROWS
    assert all(table().values())


def test_every_test_of_the_table_exists() -> None:
    named = {link for links in table().values() for link in links}
    missing = [
        f"{file}::{name}" for file, name in named if name not in functions_of(HERE.parent / file)
    ]
    assert not missing


def test_every_test_of_this_folder_that_breaks_something_is_in_the_table() -> None:
    named = {name for links in table().values() for _, name in links}
    for path in HERE.glob("test_*_that_*.py"):
        checks = {name for name in functions_of(path) if name.startswith("test_")}
        assert checks - {"test_every_chunk_kind_is_tried"} <= named, path.name

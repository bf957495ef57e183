"""Every test that the table of this folder names is there."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_named_tests_exist() -> None:
    text = (TESTS / "contract" / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 40
    there = {
        (path, node.name)
        for path in {path for path, _ in named}
        for node in ast.parse((TESTS / path).read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert set(named) - there == set()


def test_every_file_has_its_line() -> None:
    text = (TESTS / "contract" / "README.md").read_text(encoding="utf-8")
    files = {path.name for path in (TESTS / "contract").glob("test_*.py")} - {Path(__file__).name}
    assert {name for name in files if f"`{name}`" not in text} == set()

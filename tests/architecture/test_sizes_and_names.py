"""Files and functions stay readable, and no module has a name that says nothing."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "protos",
    "shared",
    "prefill_service",
    "decode_service",
    "gateway",
    "deploy",
    "loadtest",
)
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "core", "stuff"}


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "_pb2" not in path.name]


@pytest.mark.parametrize("folder", [*PACKAGES, "tests"])
def test_files_are_short(folder):
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(folder)
    }
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES}


@pytest.mark.parametrize("folder", PACKAGES)
def test_functions_are_short(folder):
    too_long = {}
    for path in python_files(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    too_long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert not too_long


def test_module_names_say_what_is_inside():
    named = {path.relative_to(ROOT) for path in python_files(*PACKAGES)}
    banned = {path for path in named if BANNED_NAMES & {path.stem, *path.parent.parts}}
    assert not banned


def test_nothing_is_left_to_do():
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    left = [
        str(path.relative_to(ROOT))
        for path in python_files(*PACKAGES)
        if any(mark in path.read_text(encoding="utf-8") for mark in marks)
    ]
    assert not left

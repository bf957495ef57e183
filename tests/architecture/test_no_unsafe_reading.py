"""Nothing that comes from outside can become code: no pickle, by whatever name, anywhere."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "protos", "shared", "prefill_service", "decode_service", "gateway", "deploy", "loadtest",
    "tests",
)  # fmt: skip
FORBIDDEN_MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "pandas",
    "jsonpickle",
}  # fmt: skip
FORBIDDEN_BUILTINS = {"eval", "exec"}


def breaches(source: str) -> Iterator[str]:
    """What a file does that could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            names = []
        yield from (f"imports {n}" for n in names if n.split(".")[0] in FORBIDDEN_MODULES)
        if isinstance(node, ast.Call):
            yield from _call_breaches(node)


def _call_breaches(call: ast.Call) -> Iterator[str]:
    arguments = {word.arg: word.value for word in call.keywords}
    if isinstance(call.func, ast.Name) and call.func.id in FORBIDDEN_BUILTINS:
        yield f"calls {call.func.id}"
    if not isinstance(call.func, ast.Attribute):
        return
    name = ast.unparse(call.func)
    if name == "torch.load" and not _is(arguments.get("weights_only"), True):
        yield "torch.load without weights_only=True unpickles"
    if name in {"np.load", "numpy.load"} and _is(arguments.get("allow_pickle"), True):
        yield "numpy.load with allow_pickle"
    if name in {"yaml.load", "yaml.full_load", "yaml.unsafe_load"}:
        yield f"{name} builds objects: use yaml.safe_load"
    if _is(arguments.get("trust_remote_code"), True):
        yield "trust_remote_code runs what a checkpoint brings"
    if _is(arguments.get("shell"), True):
        yield "a shell reads the command line"


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_file_unpickles_or_runs_what_it_reads():
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            what = list(breaches(path.read_text(encoding="utf-8")))
            if what:
                found[str(path.relative_to(ROOT))] = what
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import cloudpickle as c",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "subprocess.run(text, shell=True)",
        "eval(text)",
    ],
)
def test_the_test_would_find_it(source: str):
    assert list(breaches(source))

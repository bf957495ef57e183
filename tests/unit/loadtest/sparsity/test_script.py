import json
import subprocess
import sys
from pathlib import Path

from loadtest.facts import Run
from loadtest.sparsity.__main__ import main
from loadtest.sparsity.records import ForcedFact, read_facts

ROOT = Path(__file__).resolve().parents[4]
FLAGS = [
    "--parts", "teacher", "--policies", "delta", "--budgets", "6", "--context", "200",
    "--steps", "6", "--windows", "1", "--full-layers", "0,1,2;0,3",
]  # fmt: skip


def test_it_writes_results_with_their_origin_and_says_what_they_mean(
    tiny_model_dir, tmp_path, capsys
):
    flags = ["--model", str(tiny_model_dir), "--out", str(tmp_path), "--commit", "abc", *FLAGS]
    assert main(flags) == 0
    run, *facts = read_facts(tmp_path)
    assert isinstance(run, Run)
    assert run.command == f"python -m loadtest.sparsity {' '.join(flags)}"
    assert (run.commit, run.model, run.dtype) == ("abc", "tiny", "float32")
    assert run.sparsity["page_budget"] == 64
    assert {fact.arm for fact in facts if isinstance(fact, ForcedFact)} == {"dense", "delta"}
    said = capsys.readouterr()
    assert "teacher: 1 of 1" in said.err
    assert "within 3% of the formula" in said.out
    assert main(flags) == 3
    assert main([*flags, "--resume", "--max-seconds", "0.0"]) == 0
    capsys.readouterr()
    assert main(["--out", str(tmp_path), "--report"]) == 0
    assert json.loads(capsys.readouterr().out)["teacher"][0]["arm"] == "delta"


def test_a_report_of_nothing_says_so(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "elsewhere"), "--report"]) == 3
    said = capsys.readouterr()
    assert "elsewhere has no results" in said.err
    assert not said.out


def test_it_needs_none_of_the_command_lines_packages():
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'structlog', 'typer', 'rich', 'orjson', 'pydantic',\n"
        "                'prometheus_client', 'matplotlib', 'starlette', 'uvicorn', 'redis'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import loadtest.sparsity.__main__, shared.model.catalog\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=100)

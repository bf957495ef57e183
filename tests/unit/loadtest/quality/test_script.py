import json
import subprocess
import sys
from pathlib import Path

from loadtest.quality.__main__ import main
from loadtest.quality.store import Run, Trial, read_facts

ROOT = Path(__file__).resolve().parents[4]
FLAGS = [
    "--parts", "needle", "--rankers", "claa", "--keep", "0.2", "--lengths", "640",
    "--depths", "0,1", "--seeds", "1",
]  # fmt: skip


def test_it_writes_results_with_their_origin(tiny_model_dir, tmp_path, capsys):
    flags = ["--model", str(tiny_model_dir), "--out", str(tmp_path), "--commit", "abc", *FLAGS]
    assert main(flags) == 0
    run, *facts = read_facts(tmp_path)
    assert isinstance(run, Run)
    assert run.command == f"python -m loadtest.quality {' '.join(flags)}"
    assert (run.commit, run.model, run.dtype) == ("abc", "tiny", "float32")
    assert json.dumps(run.pruning)
    assert any(isinstance(fact, Trial) for fact in facts)
    assert "needle: 4 of 4" in capsys.readouterr().err
    assert main(flags) == 3
    assert main([*flags, "--resume", "--max-seconds", "0.0"]) == 0
    assert "--resume" in capsys.readouterr().err


def test_it_needs_none_of_the_command_lines_packages():
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'structlog', 'typer', 'rich', 'orjson', 'pydantic',\n"
        "                'prometheus_client', 'matplotlib', 'starlette', 'uvicorn', 'redis'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import loadtest.quality.__main__, shared.model.catalog\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=100)

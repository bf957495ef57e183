"""`python -m loadtest.sparsity`: the study without the command line's packages.

For machines that hold little beside PyTorch. Without `--report` it measures; with it, it prints
what the results of a folder say.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.sparsity.evaluation import EvaluationRequest, run_evaluation
from loadtest.sparsity.records import PARTS, read_facts
from loadtest.sparsity.settings import StudySettings
from loadtest.sparsity.summary import study_summary
from shared.config.exit_codes import exit_code_for
from shared.errors import TandemError


def main(argv: Sequence[str]) -> int:
    """Runs the parts asked for; returns the exit code."""
    arguments = vars(_parser().parse_args(argv))
    only_report = arguments.pop("report")
    try:
        if only_report:
            print(json.dumps(study_summary(read_facts(arguments["out"])), indent=1))
            return 0
        request = _request(arguments, command=f"python -m loadtest.sparsity {' '.join(argv)}")
        finished = run_evaluation(request, progress=_print_progress)
    except TandemError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return exit_code_for(error)
    for line in study_summary(read_facts(request.out))["verdicts"]:
        print(line)
    if not finished:
        print(f"the time is up: --resume --out {request.out} goes on", file=sys.stderr)
    return 0


def _print_progress(part: str, *, done: int, total: int) -> None:
    print(f"{part}: {done} of {total}", file=sys.stderr, flush=True)


def _request(arguments: dict[str, Any], *, command: str) -> EvaluationRequest:
    given = {name: value for name, value in arguments.items() if value is not None}
    names = EvaluationRequest.__dataclass_fields__
    settings = StudySettings(**{name: value for name, value in given.items() if name not in names})
    own = {name: value for name, value in given.items() if name in names}
    return EvaluationRequest(settings=settings, command=command, **own)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.sparsity",
        description="Measures every page policy against dense decode over the same KV.",
        argument_default=None,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="results folder")
    add("--report", action="store_true", help="print what the folder's results say, as JSON")
    add("--resume", action="store_true", help="go on with the results that are in it")
    add("--model", help="catalog name, folder or hub id")
    add("--device", help="PyTorch device")
    add("--dtype", help="float32 or bfloat16")
    add("--profile", help="profile name or TOML file")
    add("--cache-dir", type=Path, help="model cache")
    add("--commit", help="commit of the code, where it is no git checkout")
    add("--parts", type=_list_of(str), help=f"comma-separated, of {','.join(PARTS)}")
    add("--policies", type=_list_of(str), help="comma-separated; all without it")
    add("--budgets", type=_list_of(int), help="page budgets, comma-separated")
    add("--keep-rate", type=float, help="keep rate of the pruned prefills")
    add("--full-layers", type=_sets, help="further sets F, such as 0,1,2,9;0,1,2,9,17")
    add("--temperature", type=float, help="of free generations; 0: greedy")
    add("--needle-lengths", type=_list_of(int), help="prompt tokens of the needle questions")
    add("--needle-prefills", type=_list_of(str), help="pruned, whole or both")
    add("--long-budgets", type=_list_of(int), help="page budgets of the long texts")
    add("--generation-policies", type=_list_of(str), help="page policies that generate")
    add("--strip-layers", type=_list_of(int), help="layers whose pages are kept")
    for name, text in _COUNTS.items():
        add(f"--{name}", type=int, help=text)
    add("--max-seconds", type=float, help="begin nothing new after this time")
    return parser


_COUNTS = {
    "windows": "windows of prose of the teacher part",
    "context": "prompt tokens of a window",
    "steps": "decode steps of a window",
    "sample-every": "steps between two looks at recall and churn",
    "needle-answers": "questions that full and dense after pruning both answer",
    "needle-prompts": "questions that are tried at most",
    "long-samples": "texts of each kind",
    "long-context": "prompt tokens of the long texts",
    "long-steps": "decode steps of the long texts",
    "generation-tokens": "tokens of a free generation",
    "generation-context": "prompt tokens before it",
    "generation-windows": "prompts that are continued",
    "generation-pages": "its page budget",
    "strip-steps": "steps that a page strip keeps at most",
    "ablation-steps": "decode steps of a window of the ablations",
    "ablation-windows": "windows of prose of the ablations",
    "ablation-pages": "page budget of ablations over a whole prefill",
    "pruned-pages": "page budget of ablations over a pruned prefill",
    "ablation-answers": "answered questions of the ablations",
}


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        return tuple(kind(part.strip()) for part in text.split(","))

    parse.__name__ = f"list of {getattr(kind, '__name__', 'values')}"
    return parse


def _sets(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(_list_of(int)(part) for part in text.split(";"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

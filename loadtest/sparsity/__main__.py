"""`python -m loadtest.sparsity`: the study without the command line's packages.

For machines that hold little beside PyTorch. Without `--report` it measures; with it, it prints
what the results of a folder say.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from loadtest.report_files import no_results
from loadtest.script import (
    list_of,
    print_progress,
    print_unfinished,
    request_of,
    study_parser,
)
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
            facts = read_facts(arguments["out"])
            if not facts:
                raise no_results(arguments["out"])
            print(json.dumps(study_summary(facts), indent=1))
            return 0
        request = request_of(
            arguments,
            request=EvaluationRequest,
            settings=StudySettings,
            command=f"python -m loadtest.sparsity {' '.join(argv)}",
        )
        finished = run_evaluation(request, progress=print_progress)
    except TandemError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return exit_code_for(error)
    for line in study_summary(read_facts(request.out))["verdicts"]:
        print(line)
    if not finished:
        print_unfinished(request.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = study_parser(
        "python -m loadtest.sparsity",
        "Measures every page policy against dense decode over the same KV.",
    )
    add = parser.add_argument
    add("--report", action="store_true", help="print what the folder's results say, as JSON")
    add("--parts", type=list_of(str), help=f"comma-separated, of {','.join(PARTS)}")
    add("--policies", type=list_of(str), help="comma-separated; all without it")
    add("--budgets", type=list_of(int), help="page budgets, comma-separated")
    add("--keep-rate", type=float, help="keep rate of the pruned prefills")
    add("--full-layers", type=_sets, help="further sets F, such as 0,1,2,9;0,1,2,9,17")
    add("--temperature", type=float, help="of free generations; 0: greedy")
    add("--needle-lengths", type=list_of(int), help="prompt tokens of the needle questions")
    add("--needle-prefills", type=list_of(str), help="pruned, whole or both")
    add("--long-budgets", type=list_of(int), help="page budgets of the long texts")
    add("--generation-policies", type=list_of(str), help="page policies that generate")
    add("--strip-layers", type=list_of(int), help="layers whose pages are kept")
    for name, text in _COUNTS.items():
        add(f"--{name}", type=int, help=text)
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


def _sets(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(list_of(int)(part) for part in text.split(";"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m loadtest.quality`: the evaluation without the command line's packages.

For machines that hold little beside PyTorch; `tandem eval report` draws what it leaves.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.quality.evaluation import EvaluationRequest, run_evaluation
from loadtest.quality.settings import PARTS, StudySettings
from loadtest.quality.shard import parse_shard
from loadtest.quality.tasks.sample import Protocol
from loadtest.script import (
    list_of,
    print_progress,
    print_unfinished,
    request_of,
    study_parser,
)
from shared.config.exit_codes import exit_code_for
from shared.errors import TandemError


def main(argv: Sequence[str]) -> int:
    """Runs the parts asked for; returns the exit code."""
    arguments = vars(_parser().parse_args(argv))
    try:
        if arguments["shard"] is not None:
            arguments["shard"] = parse_shard(arguments["shard"])
        request = request_of(
            arguments,
            request=EvaluationRequest,
            settings=StudySettings,
            command=f"python -m loadtest.quality {' '.join(argv)}",
        )
        finished = run_evaluation(request, progress=print_progress)
    except TandemError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return exit_code_for(error)
    if not finished:
        print_unfinished(request.out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = study_parser(
        "python -m loadtest.quality",
        "Measures every ranking method against full attention and the oracle.",
    )
    add = parser.add_argument
    add("--draft", help="draft model of speculative prefill; the model itself without it")
    add("--parts", type=list_of(str), help=f"comma-separated, of {','.join(PARTS)}")
    add("--rankers", type=list_of(str), help="comma-separated; all without it")
    add("--keep", type=list_of(float), help="keep rates, comma-separated")
    add("--lengths", type=list_of(int), help="prompt tokens of the needle grid")
    add("--depths", type=list_of(float), help="needle depths of the grid, 0 to 1")
    add("--seeds", type=int, help="samples of each cell of the needle grid")
    add(
        "--protocol",
        dest="protocols",
        type=list_of(Protocol),
        help="question included, excluded, or both: included,excluded",
    )
    add("--ruler-length", type=int, help="tokens of a RULER prompt")
    add("--ruler-samples", type=int, help="prompts of each RULER task")
    add("--mixture-lengths", type=list_of(int), help="prompt tokens of the mixture")
    add("--mixture-answers", type=int, help="answers of full at 2k tokens and more")
    add("--mixture-prompts", type=int, help="prompts of the mixture that are tried at most")
    add("--floors", type=list_of(int), help="floors on the kept count tried on the mixture")
    add("--ablation-lengths", type=list_of(int), help="prompt tokens of the ablations")
    add("--ablation-answers", type=int, help="answers of full in the ablations")
    add("--correlation-samples", type=int, help="prompts of each task")
    add("--timing-lengths", type=list_of(int), help="prompt tokens that are timed")
    add("--timing-repeats", type=int, help="timed runs of each arm")
    add("--shard", help="measure one part of the prompts only, such as 2/8: for several processes")
    add("--longbench", type=Path, help="folder of LongBench's files")
    add("--longbench-samples", type=int, help="records of each file")
    add("--longbench-tokens", type=int, help="longest LongBench prompt")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

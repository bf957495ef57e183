"""`python -m loadtest.quality`: the evaluation without the command line's packages.

For machines that hold little beside PyTorch; `tandem eval report` draws what it leaves.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loadtest.quality.evaluation import EvaluationRequest, run_evaluation
from loadtest.quality.settings import PARTS, StudySettings
from loadtest.quality.tasks.sample import Protocol
from shared.config.exit_codes import exit_code_for
from shared.errors import TandemError


def main(argv: Sequence[str]) -> int:
    """Runs the parts asked for; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        request = _request(arguments, command=f"python -m loadtest.quality {' '.join(argv)}")
        finished = run_evaluation(request, progress=_print_progress)
    except TandemError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return exit_code_for(error)
    if not finished:
        print(f"the time is up: --resume --out {request.out} goes on", file=sys.stderr)
    return 0


def _print_progress(part: str, *, done: int, total: int) -> None:
    print(f"{part}: {done} of {total}", file=sys.stderr, flush=True)


def _request(arguments: argparse.Namespace, *, command: str) -> EvaluationRequest:
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    names = EvaluationRequest.__dataclass_fields__
    settings = StudySettings(**{name: value for name, value in given.items() if name not in names})
    own = {name: value for name, value in given.items() if name in names}
    return EvaluationRequest(settings=settings, command=command, **own)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.quality",
        description="Measures every ranking method against full attention and the oracle.",
        argument_default=None,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="results folder")
    add("--resume", action="store_true", help="go on with the results that are in it")
    add("--model", help="catalog name, folder or hub id")
    add("--device", help="PyTorch device")
    add("--dtype", help="float32 or bfloat16")
    add("--profile", help="profile name or TOML file")
    add("--draft", help="draft model of speculative prefill; the model itself without it")
    add("--cache-dir", type=Path, help="model cache")
    add("--commit", help="commit of the code, where it is no git checkout")
    add("--parts", type=_list_of(str), help=f"comma-separated, of {','.join(PARTS)}")
    add("--rankers", type=_list_of(str), help="comma-separated; all without it")
    add("--keep", type=_list_of(float), help="keep rates, comma-separated")
    add("--lengths", type=_list_of(int), help="prompt tokens of the needle grid")
    add("--seeds", type=int, help="samples of each cell of the needle grid")
    add(
        "--protocol",
        dest="protocols",
        type=_list_of(Protocol),
        help="question included, excluded, or both: included,excluded",
    )
    add("--ruler-length", type=int, help="tokens of a RULER prompt")
    add("--ruler-samples", type=int, help="prompts of each RULER task")
    add("--mixture-lengths", type=_list_of(int), help="prompt tokens of the mixture")
    add("--mixture-answers", type=int, help="answers of full at 2k tokens and more")
    add("--mixture-prompts", type=int, help="prompts of the mixture that are tried at most")
    add("--ablation-lengths", type=_list_of(int), help="prompt tokens of the ablations")
    add("--ablation-answers", type=int, help="answers of full in the ablations")
    add("--correlation-samples", type=int, help="prompts of each task")
    add("--timing-lengths", type=_list_of(int), help="prompt tokens that are timed")
    add("--timing-repeats", type=int, help="timed runs of each arm")
    add("--longbench", type=Path, help="folder of LongBench's files")
    add("--longbench-samples", type=int, help="records of each file")
    add("--longbench-tokens", type=int, help="longest LongBench prompt")
    add("--max-seconds", type=float, help="begin nothing new after this time")
    return parser


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def parse(text: str) -> tuple[Any, ...]:
        return tuple(kind(part.strip()) for part in text.split(","))

    parse.__name__ = f"list of {getattr(kind, '__name__', 'values')}"
    return parse


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m loadtest.witness`: our time to first token beside guidellm's, on a running gateway."""

import argparse
import shlex
import sys
from collections.abc import Sequence

from loadtest.load.launch import check_locust
from loadtest.witness.guidellm import find_program
from loadtest.witness.plan import add_witness_flags, plan_of
from shared.config.exit_codes import exit_code_for
from shared.errors import TandemError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 both agree, 1 they differ, 3 wrong settings, 10 the interval is too wide."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.witness",
        description=f"{__doc__} All further flags, --host among them, are those of "
        "`python -m loadtest.load run`.",
        allow_abbrev=False,
    )
    add_witness_flags(parser)
    given, flags = parser.parse_known_args(arguments)
    try:
        check_locust()
        program = find_program(given.guidellm)
        plan = plan_of(given, flags)
        from loadtest.witness.run import run_witness  # noqa: PLC0415  gevent, checked above

        command = f"python -m loadtest.witness {shlex.join(arguments)}"
        return run_witness(plan, program, command=command)
    except TandemError as error:
        print(f"error: {error}", file=sys.stderr)
        return int(exit_code_for(error))


if __name__ == "__main__":
    sys.exit(main())

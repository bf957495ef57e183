"""`python -m tests.fuzz`: malformed HTTP and gRPC against `tandem up` with the tiny model."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.fuzz.campaign import Campaign
from tests.fuzz.fleet import running_fleet
from tests.support.tiny_model import TINY_NAME, write_tiny_folder


def main() -> int:
    """1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=50_000, help="inputs [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="of all that is drawn [%(default)s]")
    parser.add_argument("--first", type=int, default=0, help="index of the first input")
    parser.add_argument("--only", type=int, help="replay the input of this index alone")
    parser.add_argument(
        "--every", type=int, default=1_000, help="inputs between two examinations [%(default)s]"
    )
    parser.add_argument("--log", type=Path, help="file for the logs of the roles")
    arguments = parser.parse_args()
    first, count = arguments.first, arguments.count
    if arguments.only is not None:
        first, count = arguments.only, 1
    with tempfile.TemporaryDirectory() as folder:
        model_dir = write_tiny_folder(Path(folder) / TINY_NAME)
        with running_fleet(model_dir) as fleet:
            campaign = Campaign(
                fleet, seed=arguments.seed, every=arguments.every, say=_say_on_standard_error
            )
            try:
                report = asyncio.run(campaign.run(first, count))
            finally:
                if arguments.log is not None:
                    arguments.log.write_text(fleet.log(), encoding="utf-8")
    print("\n".join(report.lines()))
    return 1 if report.findings else 0


def _say_on_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""How benchmarks of this folder end: with one JSON object, with a table, or with what is wrong."""

import argparse
import json
from collections.abc import Callable
from typing import Any

from shared.errors import ConfigError, InvalidRequestError

Result = dict[str, Any]


def tell_result(
    parser: argparse.ArgumentParser,
    run: Callable[[], Result],
    *,
    as_json: bool,
    table: Callable[[Result], None] | None = None,
) -> Result:
    """Runs a benchmark and prints what it found, which it returns too.

    Args:
        parser: of the command; it ends the process where what was asked for cannot be.
        run: the benchmark.
        as_json: print one object on one line.
        table: prints it for a reader otherwise; None: JSON on several lines.
    """
    try:
        result = run()
    except (ConfigError, InvalidRequestError) as error:
        parser.error(str(error))
    if as_json or table is None:
        print(json.dumps(result, indent=None if as_json else 1))
    else:
        table(result)
    return result

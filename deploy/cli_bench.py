"""The `tandem bench` sub-commands: flags in, `deploy.bench` does the work."""

from pathlib import Path
from typing import Annotated

import typer

bench_app = typer.Typer(no_args_is_help=True, help="Speed of the engines against transformers.")

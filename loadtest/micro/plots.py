"""Pictures of the benches' results: time to first token by length, step time by context.

    python -m loadtest.micro.plots prefill.json decode.json generation.json --out pictures

Reads what `prefill_pass`, `decode_step` and `generation` of this folder wrote with `--json` on a
GPU, in any number, and writes `ttft-by-length.png` and `step-by-context.png`, as far as there is
something to draw. Where two files have the same point, the later one's is drawn. Needs matplotlib.
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from loadtest.micro.plot_points import read_results
from shared.errors import ConfigError


def draw_results(paths: Sequence[Path], *, out: Path) -> list[Path]:
    """Draws the results of some files.

    Args:
        paths: the files.
        out: folder of the pictures; made if it is not there.

    Returns:
        The pictures.

    Raises:
        ConfigError: matplotlib is missing, a file holds no times, or `out` cannot be written.
    """
    if find_spec("matplotlib") is None:
        raise ConfigError(
            "pictures need matplotlib, which is not installed: install Tandem's extra eval"
        )
    found = read_results(paths)
    # They import matplotlib, which machines that only measure need not have.
    from loadtest.figures import png_files  # noqa: PLC0415
    from loadtest.micro.plot_figures import step_by_context, ttft_by_length  # noqa: PLC0415

    drawings = {"ttft-by-length": ttft_by_length(found), "step-by-context": step_by_context(found)}
    written = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, picture in png_files(drawings).items():
            written.append(out / f"{name}.png")
            written[-1].write_bytes(picture)
    except OSError as error:
        raise ConfigError(f"{out} cannot take pictures: {error}") from error
    return written


def main(arguments: Sequence[str] | None = None) -> None:
    """The command; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.micro.plots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results")
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the pictures; here")
    given = parser.parse_args(arguments)
    try:
        written = draw_results(given.files, out=given.out)
    except ConfigError as error:
        parser.error(str(error))
    for path in written:
        print(path)


if __name__ == "__main__":
    main()

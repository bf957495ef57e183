"""Drawing shared by the reports' figures. Needs matplotlib (extra `eval`)."""

import io
import math
from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

MARKERS = "osD^v<>PX*hd"
"""One for each line of a figure, in turn."""
_DPI = 110
_COLUMNS = 4


def panel_figure(
    count: int, *, width: float, height: float, columns: int = _COLUMNS
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in rows of at most `columns`, each of a size in inches."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    drawn = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return drawn, [drawn.add_subplot(rows, columns, index + 1) for index in range(count)]


def png_files(drawings: Mapping[str, Figure | None]) -> dict[str, bytes]:
    """PNG bytes of the figures that there are, by name."""
    return {name: png(drawn) for name, drawn in drawings.items() if drawn is not None}


def png(drawn: Figure) -> bytes:
    """PNG bytes of a figure."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=_DPI)
    return buffer.getvalue()

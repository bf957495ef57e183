"""`tandem inspect pages --png`: the picture of one layer's reads."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decode_service.engine.solo import PromptTensors
from shared.errors import ConfigError
from shared.types.page_summary import PageSummary


def check_file(png: Path, *, flag: str) -> None:
    """Says before any work what would keep a picture from being drawn into a file.

    Args:
        png: the file.
        flag: what named it.

    Raises:
        ConfigError: matplotlib is missing, or the folder is.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            f"{flag} needs matplotlib, which is not installed: install Tandem's extra eval, or "
            "take --json and draw elsewhere"
        )
    if not png.parent.is_dir():
        raise ConfigError(f"{flag} {png}: there is no folder {png.parent}; create it first")


def check_drawing(png: Path | None, *, layer: int | None, max_tokens: int) -> None:
    """Says before any work what would keep a layer's picture from being drawn.

    Raises:
        ConfigError: matplotlib is missing, the folder is, or there is nothing to draw.
    """
    if png is None:
        if layer is not None:
            raise ConfigError("--layer chooses the layer of a picture: give --png FILE as well")
        return
    check_file(png, flag="--png")
    if max_tokens == 1:
        raise ConfigError("--png needs a decode step to draw: give --max-tokens 2 or more")


def write_picture(
    png: Path,
    report: Mapping[str, Any],
    *,
    prompt: PromptTensors,
    pages: PageSummary,
    layer: int | None,
) -> int:
    """Draws a layer's strip into a file; returns the layer.

    Args:
        png: where to write.
        report: what `inspect_pages` gave.
        prompt: the row's prompt.
        pages: the policy and its parameters.
        layer: which layer; None: the last one that left a page unread, or the last of all.

    Raises:
        ConfigError: the model has no such layer, or the file cannot be written.
    """
    from loadtest.sparsity.page_strip import draw_strip, strip_of

    num_layers = len(report["roles"])
    if layer is not None and not 0 <= layer < num_layers:
        raise ConfigError(f"--layer {layer}: the model has layers 0 to {num_layers - 1}")
    backwards = range(num_layers - 1, -1, -1)
    strips = [
        strip_of(
            report,
            layer=index,
            prompt_slots=prompt.layouts[prompt.layer_layouts[index]].slots,
            recent=pages.recency_pages or 0,
            title=f"{pages.text}: layer {index}",
        )
        for index in (backwards if layer is None else (layer,))
    ]
    shown = next((strip for strip in strips if strip.skips), strips[0])
    try:
        png.write_bytes(draw_strip(shown))
    except OSError as error:
        raise ConfigError(
            f"--png {png} cannot be written ({error}); choose another file"
        ) from error
    return shown.layer

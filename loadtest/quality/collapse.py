"""Which single layers fail as rankers.

Shapes: Y layers.
"""

from collections.abc import Sequence

COLLAPSED_BELOW = 2 / 3
"""A layer that alone reaches less than this share of the best layer's figure is collapsed."""


def collapsed_layers(rho_Y: Sequence[float], coverage_Y: Sequence[float] | None) -> list[int]:
    """Layers that alone keep much less of the needles than the best one does.

    Rho decides only where there are no needles: it is taken over all positions, nearly all of which
    no answer depends on, and hardly sees a layer that loses the few that matter.
    """
    figures = rho_Y if coverage_Y is None else coverage_Y
    bar = COLLAPSED_BELOW * max(figures)
    return [layer for layer, figure in enumerate(figures) if figure < bar]

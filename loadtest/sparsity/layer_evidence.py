"""What a calibration of Δ-layers leaves in a profile, as calibrations write and reports read it."""

from collections.abc import Mapping, Sequence

WARM_LAYERS = (0, 1)
"""Full layers that plan nothing."""
FIRST_DELTA = len(WARM_LAYERS)
"""The Δ-layer that there is always."""

CURVES = "sparsity"
"""Table of the evidence that holds the curves."""
BY_RECALL, BY_LOW_RECALL, BY_WEIGHTED_RECALL = "recall", "low_recall", "weighted_recall"
BY_SHIFT, SHIPPED, REFINED = "shift", "shipped", "refined"
"""Rules: highest mean recall, highest 10th percentile, highest mean with layers weighted by how
much they turn the stream, the paper's peaks of the shift; the base profile's set; a refinement."""


def recall_matrix(table: Mapping[str, Sequence[float]], *, num_layers: int) -> list[list[float]]:
    """The matrix [i][j] of a table of the evidence; what it does not tell is not a number."""
    matrix = [[float("nan")] * num_layers for _ in range(num_layers)]
    for name, values in table.items():
        layer = int(name.removeprefix("layer_"))
        matrix[layer][layer + 1 :] = list(values)
    return matrix

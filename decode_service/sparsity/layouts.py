"""Which prompt position each KV slot of a layer holds.

Shapes: R rows of a position map (1, or one a KV head), N prompt slots, T slots in all.
"""

from dataclasses import dataclass, replace

import torch

from shared.errors import ManifestError
from shared.types.kv_manifest import LayoutSpec, PositionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """A slot-to-position map of the prompt.

    Generated token t sits at slot `slots` + t and position L + t in every layout.
    """

    kind: PositionKind
    """How slots map."""
    slots: int
    """Prompt slots N."""
    positions_RN: torch.Tensor | None
    """int64, each row strictly ascending; None for the identity."""

    @classmethod
    def from_spec(
        cls,
        spec: LayoutSpec,
        positions_RN: torch.Tensor | None,
        *,
        prompt_tokens: int,
        num_kv_heads: int,
    ) -> "KvLayout":
        """Checks a layout that arrived with a KV cache.

        Args:
            spec: what the manifest says.
            positions_RN: the shipped positions, any integer type; None for the identity.
            prompt_tokens: original prompt length L.
            num_kv_heads: rows of a per-head layout.

        Raises:
            ManifestError: the positions are not strictly ascending, out of range, of another shape,
                missing or superfluous.
        """
        if spec.kind is PositionKind.IDENTITY:
            _require(positions_RN is None and spec.slots == prompt_tokens, "an identity layout")
            return cls(kind=spec.kind, slots=spec.slots, positions_RN=None)
        rows = num_kv_heads if spec.kind is PositionKind.PER_HEAD else 1
        _require(
            positions_RN is not None and tuple(positions_RN.shape) == (rows, spec.slots),
            f"positions of shape [{rows}, {spec.slots}]",
        )
        assert positions_RN is not None, "checked on the line above"
        wide_RN = positions_RN.to(torch.int64)
        _require(bool((wide_RN.diff(dim=1) > 0).all()), "strictly ascending positions")
        _require(
            bool((wide_RN >= 0).all()) and bool((wide_RN < prompt_tokens).all()),
            f"positions in 0..{prompt_tokens - 1}",
        )
        return cls(kind=spec.kind, slots=spec.slots, positions_RN=wide_RN)

    def on(self, device: torch.device) -> "KvLayout":
        """The same layout with its positions on `device`, where scores by position are."""
        if self.positions_RN is None:
            return self
        return replace(self, positions_RN=self.positions_RN.to(device))

    def same_positions(self, other: "KvLayout") -> bool:
        """Whether another layout of the same prompt holds the same positions in the same slots.

        Then a slot's score means the same in both, whatever their kinds are called.
        """
        if self.slots != other.slots:
            return False
        if self.positions_RN is None or other.positions_RN is None:
            return True  # positions ascend, so a map of every position is the identity
        return bool((self.positions_RN == other.positions_RN).all())


def _require(ok: bool, wanted: str) -> None:  # noqa: FBT001  a check reads best as check(condition, text)
    if not ok:
        raise ManifestError(
            f"a KV layout arrived that does not hold {wanted}: the positions were damaged or the "
            "two sides disagree on the manifest; start a new attempt"
        )

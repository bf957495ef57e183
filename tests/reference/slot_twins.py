"""TidalDecode and LessIsMore the slow way: a dictionary of positions for every head, sorted lists.

Written from the description of the methods, not from the policies.
"""

from dataclasses import dataclass, field

from decode_service.sparsity.base import RowFacts


def held_positions(facts: RowFacts, layer: int, *, generated: int) -> list[list[int]]:
    """The position of each slot of a layer, for every query head."""
    layout = facts.layout_of(layer)
    if layout.positions_RN is None:
        prompts = [list(range(facts.prompt_tokens))]
    else:
        prompts = [[int(p) for p in row] for row in layout.positions_RN.tolist()]
    answer = [facts.prompt_tokens + t for t in range(generated)]
    heads = []
    for head in range(facts.num_heads):
        kv_head = head * facts.num_kv_heads // facts.num_heads
        heads.append(prompts[kv_head if len(prompts) > 1 else 0] + answer)
    return heads


@dataclass
class SlowBoards:
    """What every head last saw at each position."""

    facts: RowFacts
    generated: int
    seen: dict[tuple[int, int], float] = field(default_factory=dict)
    """By query head and position."""

    def write(self, layer: int, probs: list[list[float]]) -> None:
        """A choosing layer reports a list a head."""
        positions = held_positions(self.facts, layer, generated=self.generated)
        for head, row in enumerate(probs):
            for slot, value in enumerate(row):
                self.seen[head, positions[head][slot]] = value

    def scores(self, layer: int) -> list[list[float]]:
        """What the heads make of the slots of another layer."""
        positions = held_positions(self.facts, layer, generated=self.generated)
        return [
            [self.seen.get((head, position), 0.0) for position in row]
            for head, row in enumerate(positions)
        ]


def best_first(scores: list[float]) -> list[int]:
    """Slots from the highest score to the lowest, lower slots first among equals."""
    return sorted(range(len(scores)), key=lambda slot: (-scores[slot], slot))


def tidal_slots(scores: list[list[float]], *, budget: int) -> list[list[int]]:
    """The fed token's slot and each head's best others."""
    chosen = []
    for row in scores:
        fed = len(row) - 1
        others = [slot for slot in best_first(row) if slot != fed]
        chosen.append(sorted([fed, *others[: budget - 1]]))
    return chosen


def less_is_more_slots(scores: list[list[float]], *, budget: int, recent: int) -> list[int]:
    """The last slots, and those that the heads name in turn."""
    earlier = len(scores[0]) - recent
    rankings = [best_first(row[:earlier]) for row in scores]
    named: list[int] = []
    for rank in range(earlier):
        for ranking in rankings:
            if ranking[rank] not in named and len(named) < budget - recent:
                named.append(ranking[rank])
    return sorted(named) + list(range(earlier, len(scores[0])))

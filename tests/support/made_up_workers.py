"""Cards of workers that nobody runs, and a discovery that lists them."""

import dataclasses

from gateway.workers import DECODE, PREFILL
from shared.discovery.card import WorkerCard
from shared.types.model_identity import ModelIdentity

MODEL = ModelIdentity(
    name="m", model_hash="a", dtype="float32", num_layers=1, num_kv_heads=1, head_dim=8, rope=""
)


class Cards:
    degraded = False

    def __init__(self, *cards: WorkerCard) -> None:
        self.listed = list(cards)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def cards(self, role: str) -> list[WorkerCard]:
        return [card for card in self.listed if card.role == role]


def card(worker_id: str, **fields: object) -> WorkerCard:
    role = PREFILL if worker_id.startswith("p") else DECODE
    base = WorkerCard(
        worker_id=worker_id,
        role=role,
        address=f"{worker_id}:1",
        incarnation="1",
        model=MODEL,
        max_model_len=100,
    )
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]

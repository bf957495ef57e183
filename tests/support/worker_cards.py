"""A worker card with a value of its own in every field."""

from shared.discovery.card import WorkerCard
from tests.support.transfer_parts import MODEL

CARD = WorkerCard(
    worker_id="d1",
    role="decode",
    address="h:1",
    incarnation="i",
    model=MODEL,
    max_model_len=10,
    draining=True,
    queued_tokens=1,
    running=2,
    free_pages=3,
    transports=("nixl", "grpc"),
    device="cuda:0",
    host="b00t",
    gpu="g0",
    nvlink_peers=("g1", "g2"),
)

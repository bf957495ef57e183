"""A worker card with a value of its own in every field."""

from shared.discovery.card import WorkerCard
from shared.types.pair_state import PairState
from shared.types.topology import Topology
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
    place=Topology(
        host="b00t",
        pid_namespace="4026531836",
        gpu="g0",
        nvlink_peers=("g1", "g2"),
        p2p_peers=("g1", "g2", "g3"),
        gpus=("g0", "g1", "g2", "g3"),
        gpu_note="none",
        kv_memory="device",
    ),
    pairs=(
        PairState(worker_id="d0", transport="nixl", rejected="pid_namespace", reason="apart"),
        PairState(worker_id="d0", transport="grpc", gbps=1.5),
    ),
)

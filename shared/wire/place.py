"""Places and pairs on the wire; what a peer says of them is cut to size and never trusted."""

import math
from collections.abc import Iterable
from itertools import islice

from protos.tandem.v1 import common_pb2, control_pb2
from shared.types.pair_state import MAX_PAIR_STATES, PairState
from shared.types.topology import Topology, place_names, place_text

PLACE_VERSION = 1
"""Version of a place's meaning."""

_MAX_REASON = 500


def place_to_pb(place: Topology) -> common_pb2.Place:
    """Converts a place."""
    return common_pb2.Place(
        version=PLACE_VERSION,
        host=place.host,
        pid_namespace=place.pid_namespace,
        gpu=place.gpu,
        nvlink_peers=place.nvlink_peers,
        p2p_peers=place.p2p_peers,
        gpus=place.gpus,
        gpu_note=place.gpu_note,
        kv_memory=place.kv_memory,
    )


def place_from_pb(message: common_pb2.Place) -> Topology:
    """Converts a place; one of another version, or none, is a place that is not known."""
    if message.version != PLACE_VERSION:
        return Topology()
    return Topology(
        host=place_text(message.host),
        pid_namespace=place_text(message.pid_namespace),
        gpu=place_text(message.gpu),
        nvlink_peers=place_names(message.nvlink_peers),
        p2p_peers=place_names(message.p2p_peers),
        gpus=place_names(message.gpus),
        gpu_note=place_text(message.gpu_note),
        kv_memory=place_text(message.kv_memory),
    )


def pairs_to_pb(pairs: Iterable[PairState]) -> list[control_pb2.PairState]:
    """Converts what is known of pairs."""
    return [
        control_pb2.PairState(
            worker_id=pair.worker_id,
            transport=pair.transport,
            gbps=pair.gbps,
            rejected=pair.rejected,
            reason=pair.reason[:_MAX_REASON],
        )
        for pair in islice(pairs, MAX_PAIR_STATES)
    ]


def pairs_from_pb(messages: Iterable[control_pb2.PairState]) -> tuple[PairState, ...]:
    """Converts what a worker says of its pairs."""
    return tuple(
        PairState(
            worker_id=place_text(message.worker_id),
            transport=place_text(message.transport),
            gbps=message.gbps if math.isfinite(message.gbps) and message.gbps > 0 else 0.0,
            rejected=place_text(message.rejected),
            reason=message.reason[:_MAX_REASON],
        )
        for message in islice(messages, MAX_PAIR_STATES)
    )

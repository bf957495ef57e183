"""Places and pairs survive the wire; what a hostile or newer peer says of them is not believed."""

import math

from protos.tandem.v1 import common_pb2, control_pb2, transfer_pb2
from shared.types.pair_state import MAX_PAIR_STATES, PairState
from shared.types.topology import MAX_PLACE_GPUS, MAX_PLACE_TEXT, Topology
from shared.wire.place import (
    PLACE_VERSION,
    pairs_from_pb,
    pairs_to_pb,
    place_from_pb,
    place_to_pb,
)
from tests.support.worker_cards import CARD


def test_places_and_pairs_round_trip() -> None:
    assert place_from_pb(place_to_pb(CARD.place)) == CARD.place
    assert pairs_from_pb(pairs_to_pb(CARD.pairs)) == CARD.pairs


def test_who_tells_no_place_or_one_of_another_version_has_none() -> None:
    assert place_from_pb(transfer_pb2.HelloResponse().place) == Topology()
    later = place_to_pb(CARD.place)
    later.version = PLACE_VERSION + 1
    assert place_from_pb(later) == Topology()


def test_hostile_places_are_cut_to_size() -> None:
    hostile = common_pb2.Place(
        version=PLACE_VERSION,
        host="h" * (MAX_PLACE_TEXT + 1),
        pid_namespace="1\n2",
        gpu="g",
        gpus=[f"g{n}" for n in range(10 * MAX_PLACE_GPUS)],
        nvlink_peers=["a", "a", "", "b" * 1_000_000, "\x1b[2J", "c"],
    )
    place = place_from_pb(hostile)
    assert (place.host, place.pid_namespace, place.gpu) == ("", "", "g")
    assert len(place.gpus) == MAX_PLACE_GPUS
    assert place.nvlink_peers == ("a", "c")


def test_hostile_pairs_are_cut_to_size() -> None:
    speeds = [math.nan, math.inf, -1.0, 2.5]
    messages = [
        control_pb2.PairState(worker_id="d", gbps=speed, reason="r" * 10_000) for speed in speeds
    ]
    read = pairs_from_pb(messages * 100)
    assert [pair.gbps for pair in read[:4]] == [0.0, 0.0, 0.0, 2.5]
    assert len(read) == MAX_PAIR_STATES
    assert max(len(pair.reason) for pair in read) <= 500
    many = [PairState(worker_id="d", transport="t", reason="r" * 10_000)] * 1_000
    assert sum(len(m.SerializeToString()) for m in pairs_to_pb(many)) < 64_000

"""Cards survive JSON, tolerate newer workers, refuse anything else."""

import json

import pytest

from shared.discovery.card import WorkerCard
from shared.errors import ConfigError
from shared.types.pair_state import MAX_PAIR_STATES
from shared.types.topology import MAX_PLACE_GPUS, Topology
from tests.support.worker_cards import CARD


def test_round_trip() -> None:
    assert WorkerCard.from_json(CARD.to_json()) == CARD


def test_unknown_fields_are_left_out_and_optional_ones_default() -> None:
    raw = json.loads(CARD.to_json()) | {"invented_later": 1}
    raw["model"]["invented_later"] = 2
    del raw["draining"]
    assert not WorkerCard.from_json(json.dumps(raw)).draining


@pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "{}", '{"model": 1}'])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="worker card"):
        WorkerCard.from_json(text)


@pytest.mark.parametrize(
    "changes", [{"max_model_len": "10"}, {"worker_id": 1}, {"running": True}, {"transports": 1}]
)
def test_wrong_types_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        WorkerCard.from_json(json.dumps(json.loads(CARD.to_json()) | changes))


def test_a_card_of_an_older_worker_tells_no_place() -> None:
    raw = json.loads(CARD.to_json())
    del raw["place"], raw["pairs"]
    old = WorkerCard.from_json(json.dumps(raw))
    assert (old.place, old.pairs) == (Topology(), ())


@pytest.mark.parametrize("place", [None, 1, "h", ["h"], {"host": 1, "gpus": "g", "gpu": "\n"}])
def test_a_place_that_no_worker_would_tell_is_not_known(place: object) -> None:
    raw = json.loads(CARD.to_json()) | {"place": place}
    assert WorkerCard.from_json(json.dumps(raw)).place == Topology()


def test_places_and_pairs_are_cut_to_size() -> None:
    raw = json.loads(CARD.to_json())
    raw["place"]["gpus"] = [f"g{n}" for n in range(1_000)] + ["x" * 1_000]
    raw["pairs"] = raw["pairs"] * 1_000
    read = WorkerCard.from_json(json.dumps(raw))
    assert len(read.place.gpus) == MAX_PLACE_GPUS
    assert len(read.pairs) == MAX_PAIR_STATES

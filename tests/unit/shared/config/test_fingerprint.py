"""Replicas of the same settings share a fingerprint, whatever they are called."""

from dataclasses import replace
from typing import Any

import pytest

from prefill_service.config import PrefillConfig
from shared.config.fingerprint import config_fingerprint

OWN = PrefillConfig()


@pytest.mark.parametrize(
    "own",
    [
        {"host": "10.0.0.1", "port": 1},
        {"admin_host": "10.0.0.1", "admin_port": 1},
        {"worker_id": "p1", "advertise_address": "10.0.0.1:1"},
        {"device": "cuda:1"},
    ],
    ids=str,
)
def test_names_addresses_and_devices_do_not_count(own: dict[str, Any]) -> None:
    assert config_fingerprint(replace(OWN, **own)) == config_fingerprint(OWN)


def test_everything_else_counts() -> None:
    others = [replace(OWN, chunk_tokens=7), replace(OWN, redis_url="redis://:secret@x/0")]
    prints = {config_fingerprint(each) for each in [OWN, *others]}
    assert len(prints) == 3
    assert all("secret" not in each and len(each) == 12 for each in prints)

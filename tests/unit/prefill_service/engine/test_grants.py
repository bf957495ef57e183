"""What is remembered of the answers of decode workers, and for how many of them."""

from prefill_service.engine.grants import GrantHistory
from prefill_service.engine.job import Target
from shared.transport.lane_records import MAX_PAIRS


def target(number: int) -> Target:
    return Target(worker_id=f"d{number}", address=f"10.0.{number >> 8}.{number & 255}:8201")


def test_the_last_answer_counts() -> None:
    grants, one = GrantHistory(), target(1)
    assert not grants.likely(one)
    grants.granted(one)
    assert grants.likely(one)
    grants.refused(one)
    assert not grants.likely(one)
    grants.refused(one)


def test_workers_that_come_and_go_are_forgotten() -> None:
    grants = GrantHistory()
    for number in range(10 * MAX_PAIRS):
        grants.granted(target(number))
        grants.granted(target(0))
    assert len(grants._granting) == MAX_PAIRS
    assert grants.likely(target(0)), "one that is in use is not"
    assert not grants.likely(target(1))

"""Which rows take part in the next step."""

from decode_service.engine.scheduler import Row, Scheduler
from tests.support.engine_rows import make_row


def rows(count: int, **settings: object) -> list[Row]:
    return [make_row(**settings)[0] for _ in range(count)]  # type: ignore[arg-type]


def test_first_come_first_served_up_to_the_batch() -> None:
    scheduler = Scheduler(max_batch=2)
    first, second, third = rows(3)
    for row in (first, second, third):
        scheduler.add(row)
    assert scheduler.next_batch() == [first, second]
    assert scheduler.remove(first)
    assert not scheduler.remove(first)
    assert scheduler.next_batch() == [second, third]
    assert len(scheduler) == 2


def test_full_streams_rest_and_give_way() -> None:
    scheduler = Scheduler(max_batch=1)
    slow, quick = rows(2, limit=1)
    scheduler.add(slow)
    scheduler.add(quick)
    slow.stream.count(1)
    assert scheduler.next_batch() == [quick]


def test_deadlines() -> None:
    scheduler = Scheduler(max_batch=4)
    early, late, never = (
        make_row(deadline=5.0)[0],
        make_row(deadline=9.0)[0],
        make_row()[0],
    )
    assert scheduler.next_deadline() is None
    for row in (never, late, early):
        scheduler.add(row)
    assert scheduler.next_deadline() == 5.0
    assert scheduler.overdue(4.9) == []
    assert scheduler.overdue(5.0) == [early]
    assert scheduler.overdue(10.0) == [late, early]

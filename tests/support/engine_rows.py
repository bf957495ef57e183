"""Rows and a runner without a model, for tests of the decode loop."""

import itertools
import threading
import time
from collections.abc import Callable

from decode_service.engine.handoffs import Reservation
from decode_service.engine.scheduler import Row
from decode_service.engine.sequence import Sequence
from decode_service.engine.stop import StopTracker
from decode_service.engine.stream import Ending, TokenStream
from decode_service.sparsity.registry import policy_for
from shared.types.handoff import HandoffKey
from shared.types.sampling import SampledToken, SamplingParams, StopConditions
from tests.support.decode_parts import GEOMETRY, make_parts, reserve_spec

_numbers = itertools.count()


class CountingRunner:
    """Token after token: 100, 101, ... for each row; notes which rows took part in each step."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.broken: set[str] = set()
        self.failure: Exception = RuntimeError("planned failure")
        self.fail_batches_of = 0
        self.hold = threading.Event()
        self.hold.set()
        self.pause_s = 0.0

    def step(self, rows: list[Sequence]) -> list[SampledToken]:
        """One token a row; raises for rows that are broken."""
        self.hold.wait(timeout=20)
        time.sleep(self.pause_s)
        names = [row.key.handoff_id for row in rows]
        self.batches.append(names)
        if self.broken & set(names) or (self.fail_batches_of and len(rows) >= self.fail_batches_of):
            raise self.failure
        tokens = []
        for row in rows:
            token = SampledToken(token_id=99 + len(row.generated))
            row.generated.append(token.token_id)
            row.steps += 1
            row.attended += 10
            row.dense += 20
            tokens.append(token)
        return tokens


class Collector:
    """A row's reader's view: endings."""

    def __init__(self) -> None:
        self.endings: list[Ending] = []

    def __call__(self, ending: Ending) -> None:
        self.endings.append(ending)


def make_row(
    *,
    name: str = "",
    max_tokens: int = 5,
    limit: int = 1000,
    on_room: Callable[[], None] = lambda: None,
    deadline: float | None = None,
) -> tuple[Row, Collector]:
    """A row of an unpruned prompt whose first token is 99."""
    parts = make_parts()
    key = HandoffKey(name or f"row{next(_numbers)}")
    granted = parts.table.reserve(reserve_spec(key))
    assert isinstance(granted, Reservation)
    stop = StopConditions(max_tokens=max_tokens)
    tracker = StopTracker(stop, context_left=1000, tokenizer=None)  # type: ignore[arg-type]
    tracker.observe(99)
    collector = Collector()
    row = Row(
        sequence=Sequence(
            key=key,
            prompt=parts.adopted(granted).prompt,
            policy=policy_for(None, num_layers=GEOMETRY.num_layers),
            num_heads=GEOMETRY.num_kv_heads,
            num_kv_heads=GEOMETRY.num_kv_heads,
            sampling=SamplingParams(temperature=0.0),
            stop=stop,
            generated=[99],
        ),
        tracker=tracker,
        stream=TokenStream(limit=limit, on_room=on_room),
        on_end=collector,
        deadline=deadline,
        submitted_at=time.monotonic(),
    )
    return row, collector


async def read_all(stream: TokenStream) -> tuple[list[int], Ending]:
    """Token ids and the ending."""
    ids: list[int] = []
    while True:
        tokens, ending = await stream.next()
        ids += [token.token_id for token in tokens]
        if ending is not None:
            return ids, ending

"""Whether pairs on these devices answer as a slow one on the CPU does: all run side by side."""

import asyncio
import dataclasses
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.config import FREE_PORTS, UpConfig
from deploy.pair_settings import PairSizes, pair_tables, write_tables
from deploy.settings import load_role
from deploy.started_pair import PairStarter
from loadtest.pair.agreement import LEVEL, compare, verdict
from loadtest.pair.parity import Answer, ParityPlan, ask_all
from shared.errors import ConfigError
from shared.model.config import ModelConfig

_SLOW = "slow"
_SLOW_DTYPE, _SLOW_TRANSPORT = "float32", "grpc"
_PREFILL_THREADS, _DECODE_THREADS = 16, 8
"""Most of the slow pair: a small model gains little by more, and another pair runs beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRequest:
    """What is compared, and where."""

    model: str
    """Catalog name or folder."""
    arms: tuple[str, ...]
    """Names of arms."""
    out: Path
    """Folder of the settings."""
    dtypes: tuple[str, ...]
    """Of weights and KV, a pair in question for each; those of the slow one are float32."""
    transports: tuple[str, ...]
    """Transports of the pairs in question, best first."""
    prefill_gpus: tuple[int, ...]
    """GPU of their prefill workers; empty: the CPU."""
    decode_gpus: tuple[int, ...]
    """GPU of their decode workers; empty: the CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    answers: list[Answer]
    seconds: float
    """First request sent to last answer complete."""


class ParityRun:
    """Starts the slow pair and those in question, asks all for the same answers, compares them.

    Each is asked as soon as it is up and ended as soon as it has answered, so the comparison takes
    as long as the slowest one.

    Args:
        request: what is compared.
        config: shape of its model.
        starter: starts pairs.
        tell: takes one line about what happens now.
    """

    def __init__(
        self,
        request: ParityRequest,
        *,
        config: ModelConfig,
        starter: PairStarter,
        tell: Callable[[str], None],
    ) -> None:
        self._request = request
        self._config = config
        self._starter = starter
        self._tell = tell
        self._plan = ParityPlan.within(config.max_position, arms=request.arms)

    async def run(self) -> dict[str, Any]:
        """What the answers come to, JSON-ready.

        Raises:
            TandemError: a pair did not start, or a request failed.
        """
        request = self._request
        plain = dataclasses.replace(FREE_PORTS, model=request.model)
        cores = os.cpu_count() or 1
        slow = dataclasses.replace(
            plain,
            prefill_threads=min(cores, _PREFILL_THREADS),
            decode_threads=min(max(1, cores // 2), _DECODE_THREADS),
        )
        fast = dataclasses.replace(
            plain, prefill_gpus=request.prefill_gpus, decode_gpus=request.decode_gpus
        )
        wanted, *given = await _all(
            self._asked(slow, _SLOW, dtype=_SLOW_DTYPE, transports=(_SLOW_TRANSPORT,)),
            *(
                self._asked(fast, _name(dtype), dtype=dtype, transports=request.transports)
                for dtype in request.dtypes
            ),
        )
        found = {
            dtype: self._compared(dtype, wanted, other)
            for dtype, other in zip(request.dtypes, given, strict=True)
        }
        return {
            "model": request.model,
            "devices": {
                "prefill": _device(request.prefill_gpus),
                "decode": _device(request.decode_gpus),
            },
            "slow_seconds": wanted.seconds,
            "equal": all(each["equal"] for each in found.values()),
            "dtypes": found,
        }

    def _compared(self, dtype: str, wanted: _Asked, given: _Asked) -> dict[str, Any]:
        found = compare(wanted.answers, given.answers, level=LEVEL[dtype])
        for arm, each in found["arms"].items():
            self._tell(f"{_name(dtype)}: {verdict(arm, each)}")
        return {"seconds": given.seconds, **found}

    async def _asked(
        self, up: UpConfig, name: str, *, dtype: str, transports: tuple[str, ...]
    ) -> _Asked:
        plan = self._plan
        sizes = PairSizes(longest=plan.characters + plan.new_tokens, at_once=1)
        tables = pair_tables(self._config, sizes, dtype=dtype, transports=transports)
        file = write_tables(tables, self._request.out / f"{name}-settings.toml")
        _check_roles(file, dtype=dtype, device="cpu" if name == _SLOW else None)
        async with self._starter.running(up, file, name=name) as endpoints:
            began = time.monotonic()
            answers = await asyncio.to_thread(
                ask_all,
                plan,
                endpoints.gateway.grpc,
                progress=lambda text: self._tell(f"{name}: {text}"),
            )
            return _Asked(answers=answers, seconds=time.monotonic() - began)


async def _all(*asking: Coroutine[Any, Any, _Asked]) -> list[_Asked]:
    """All results in order; where one fails, the pairs of the others are ended first."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in asking]
    except ExceptionGroup as several:
        raise several.exceptions[0] from several
    return [task.result() for task in tasks]


def _name(dtype: str) -> str:
    """Of a pair in question, in logs and lines."""
    return f"parity-{dtype}"


def _check_roles(file: Path, *, dtype: str, device: str | None) -> None:
    """Variables of the environment win over the file, and would make a pair another one.

    Args:
        file: settings of the roles.
        dtype: that both must have.
        device: that both must be on; None: flags say where.

    Raises:
        ConfigError: one is set otherwise.
    """
    for role in ("prefill", "decode"):
        found = load_role(role, file=file).value
        for name, wanted in (("dtype", dtype), ("device", device)):
            if wanted is not None and getattr(found, name) != wanted:
                raise ConfigError(
                    f"{name} of a {role} worker would be {getattr(found, name)} where parity needs "
                    f"{wanted}: unset TANDEM_{role.upper()}__{name.upper()}",
                    param=name,
                )


def _device(gpus: tuple[int, ...]) -> str:
    return f"cuda:{gpus[0]}" if gpus else "cpu"

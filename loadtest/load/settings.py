"""Settings of one run."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from loadtest.load.arrivals import Stage, parse_stages
from loadtest.load.overrides import NO_OVERRIDES, Overrides
from loadtest.load.workloads import TRACE, WORKLOADS, Profile, RequestClass, Slo, classes_of, slo
from shared.errors import ConfigError


class Api(StrEnum):
    """How requests are put."""

    COMPLETIONS = "completions"
    """REST, token ids: prompts have exactly the planned size."""
    CHAT = "chat"
    """REST, messages of the same words: a few tokens more, by the chat template."""
    GRPC = "grpc"
    """`InferenceService.Generate` with token ids, or with the messages of a conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What is offered to which server, and what it is judged by.

    Raises:
        ConfigError: values that do not fit together.
    """

    host: str
    """URL of the REST server."""
    out: Path
    """Folder that takes the results."""
    api: Api = Api.COMPLETIONS
    """How requests are put."""
    grpc: str = ""
    """host:port of the gRPC server, for that API."""
    model: str = ""
    """Served model; empty: the one that the server names first."""
    workload: str = "chat"
    """Name of a mix."""
    profile: Profile = Profile.CPU
    """Sizes and bounds."""
    rate: float = 1.0
    """Requests per second of an open loop without stages."""
    seconds: float = 30.0
    """How long requests begin."""
    stages: str = ""
    """RATE:SECONDS,... of a ramp; empty: `rate` for `seconds`."""
    variation: float = 1.0
    """Coefficient of variation of the gaps between arrivals."""
    trace: Path | None = None
    """File of recorded requests, for that workload."""
    overrides: Overrides = NO_OVERRIDES
    """What every request asks of the pair instead of the profile's choice."""
    closed_users: int = 0
    """Clients of a closed loop; 0: an open loop."""
    seed: int = 0
    """Of arrivals, sizes and prompts."""
    slo: tuple[str, ...] = ()
    """CLASS:ttft=S,tpot=S,gap=S: other bounds than the profile's."""
    attainment: float = 0.95
    """Share of the offered requests that must be served in time."""
    max_lag: float = 0.05
    """Largest share of the schedule that the generator may be behind at its end."""
    max_in_flight: int = 512
    """Requests under way above which an open loop is stopped."""
    keep_going: bool = False
    """An open loop runs to its end, whatever the server does."""
    request_timeout_s: float = 300.0
    """Longest time of a request."""
    drain_s: float = 60.0
    """How long the run waits for answers after the last arrival."""
    figures: bool = True
    """Draw the report."""

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise ConfigError(
                f"workload {self.workload!r} is unknown: the known ones are "
                f"{', '.join(WORKLOADS)}; choose one"
            )
        self._check_api()
        if self.max_in_flight < 1:
            raise ConfigError(f"max_in_flight is {self.max_in_flight}: give at least 1")
        for name in ("rate", "seconds", "variation", "max_lag", "request_timeout_s", "drain_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be above 0; raise it")
        if self.closed_users < 0:
            raise ConfigError(
                f"closed_users is {self.closed_users}: give at least 1, or 0 for none"
            )
        if self.closed_users and self.stages:
            raise ConfigError("stages are rates: a closed loop has none; leave one of them out")
        if not 0 < self.attainment <= 1:
            raise ConfigError(f"attainment is {self.attainment}: it is a share; give 0 to 1")
        self._check_trace()
        self._check_unused()
        _ = self.all_stages, self.classes

    def _check_api(self) -> None:
        if self.api is Api.GRPC and not self.grpc:
            raise ConfigError(
                "the gRPC API has no address: only --host was given; give --grpc HOST:PORT too"
            )
        if self.api is Api.COMPLETIONS and any(kind.dialogue for kind in self.classes.values()):
            raise ConfigError(
                f"workload {self.workload!r} is conversations, and completions have no messages; "
                "give --api chat or --api grpc"
            )

    def _check_trace(self) -> None:
        if (self.workload == TRACE) != (self.trace is not None):
            raise ConfigError(
                "a trace is a workload and a file: one of them is missing; give --workload trace "
                "and --trace FILE together"
            )
        if self.trace is not None and (self.stages or self.closed_users):
            raise ConfigError("a trace has its own moments; leave the ramp and the closed loop out")

    def _check_unused(self) -> None:
        """What another setting keeps from having an effect must be left as it is."""
        closed, recorded, ramp = self.closed_users > 0, self.trace is not None, self.stages != ""
        unused = {
            "grpc": self.api is not Api.GRPC,
            "rate": closed or recorded or ramp,
            "seconds": ramp,
            "variation": closed or recorded,
            "max_lag": closed,
            "drain_s": closed,
            "keep_going": closed,
            "max_in_flight": closed or self.keep_going,
        }
        for field in fields(self):
            if unused.get(field.name) and (value := getattr(self, field.name)) != field.default:
                raise ConfigError(
                    f"{field.name} is {value}, which would change nothing: the API, the ramp, the "
                    "trace, the closed loop or --keep-going has no use for it; leave it out"
                )

    @property
    def all_stages(self) -> tuple[Stage, ...]:
        """The schedule of an open loop."""
        return parse_stages(self.stages) if self.stages else (Stage(self.rate, self.seconds),)

    @property
    def classes(self) -> dict[str, RequestClass]:
        """Classes of the workload with the bounds that hold."""
        known = classes_of(self.profile)
        wanted = {name: known[name] for name in WORKLOADS[self.workload].shares}
        judged = [name for name, kind in wanted.items() if kind.pause_s == 0]
        for text in self.slo:
            name, bounds = parse_slo(text)
            if name not in judged:
                raise ConfigError(
                    f"bounds for {name!r} would judge nothing: the workload's classes with bounds "
                    f"are {', '.join(judged)}; name one of these"
                )
            wanted[name] = replace(wanted[name], slo=bounds)
        return wanted

    def to_json(self) -> dict[str, Any]:
        """All of them, JSON-ready."""
        plain = asdict(self) | {"out": str(self.out), "slo": list(self.slo)}
        return plain | {
            "trace": None if self.trace is None else str(self.trace),
            "overrides": self.overrides.to_json(),
        }


def parse_slo(text: str) -> tuple[str, Slo]:
    """Reads `CLASS:ttft=S,tpot=S` with or without `gap=S`.

    Raises:
        ConfigError: it is something else.
    """
    name, _, rest = text.partition(":")
    try:
        bounds = _bounds(dict(part.split("=", 1) for part in rest.split(",")))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"bounds {text!r} cannot be read ({error}): they are CLASS:ttft=S,tpot=S[,gap=S] in "
            "seconds above 0; for example chat:ttft=0.5,tpot=0.05"
        ) from error
    return name, bounds


def _bounds(parts: Mapping[str, str]) -> Slo:
    numbers = {name: float(value) for name, value in parts.items()}
    if not all(0 < value < math.inf for value in numbers.values()):
        raise ValueError("a bound is not above 0")
    return slo(**numbers)

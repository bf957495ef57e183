"""Many malformed inputs from one seed, and what must hold between and after them.

The input of an index depends on the seed and the index alone, so that a finding can be replayed.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import grpc.aio

from tests.fuzz import handoffs, http2_wires, http_wires, json_bodies, rpc_calls
from tests.fuzz.exchange import Outcome, Wire, exchange
from tests.fuzz.fleet import Fleet, Patient, Vitals, channels, settled
from tests.fuzz.handoffs import Genuine, genuine

FAMILIES = (
    ("http", 26),
    ("json", 38),
    ("http2", 10),
    ("rpc", 18),
    ("handoff", 8),
)
"""Kinds of input and their shares, in percent."""

AT_ONCE = 8
"""Inputs on their way together."""

MOST_FINDINGS = 200
"""After so many a campaign ends early."""

SPARE_FILES = 2
"""File descriptors that a role may have above its start: connections that are about to close."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    index: int
    """Of the input; -1 for what was found between inputs."""
    kind: str
    what: str


@dataclass(slots=True)
class Report:
    """What a campaign did."""

    seed: int
    inputs: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    vitals: list[tuple[int, dict[str, Vitals]]] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        found = [f"seed {self.seed}: {self.inputs} inputs, {len(self.findings)} findings"]
        found += [f"  {kind}: {count}" for kind, count in sorted(self.kinds.items())]
        for family, _ in FAMILIES:
            counts = Counter(
                {label: n for (name, label), n in self.outcomes.items() if name == family}
            )
            told = ", ".join(f"{label} {n}" for label, n in counts.most_common(14))
            found.append(f"  outcomes of {family}: {told}")
        for inputs, roles in self.vitals:
            told = "; ".join(
                f"{role} {v.files} files {v.threads} threads {v.rss / 2**20:.1f} MiB"
                for role, v in roles.items()
            )
            found.append(f"  after {inputs}: {told}")
        found += [f"  FINDING {f.index} {f.kind}: {f.what}" for f in self.findings]
        return found


class Campaign:
    """Inputs against running roles.

    Args:
        fleet: the roles.
        seed: of everything that is drawn.
        every: inputs between two examinations.
        say: told of progress.
    """

    def __init__(self, fleet: Fleet, *, seed: int, every: int, say: Say) -> None:
        self._fleet = fleet
        self._every = every
        self._say = say
        self._patient = Patient(fleet.addresses)
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._genuine: tuple[Genuine, ...] = ()
        self._canary = ""
        self._complaints = 0
        self.report = Report(seed)

    async def run(self, first: int, count: int) -> Report:
        """Sends inputs `first` to `first + count - 1`; warms up with a few others before."""
        identity = await self._patient.identity()
        address = self._fleet.addresses.prefill
        self._genuine = (
            await genuine(address, identity, tokens=24),
            await genuine(address, identity, tokens=600),
        )
        self._canary = await self._patient.canary()
        await self._block(range(-AT_ONCE, 0))
        self.report = Report(self.report.seed)
        await self._examine(first=True)
        for start in range(first, first + count, self._every):
            await self._block(range(start, min(start + self._every, first + count)))
            await self._examine()
            if len(self.report.findings) >= MOST_FINDINGS:
                self._say("too many findings; ending here")
                break
        return self.report

    async def _block(self, indices: range) -> None:
        self._channels = channels(self._fleet.addresses)
        left = iter(indices)

        async def work() -> None:
            for index in left:
                await self._one(index)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(work())
        finally:
            for channel in self._channels.values():
                await channel.close()
            self._channels.clear()
            gc.collect()  # calls in cycles would keep our own connections open

    async def _one(self, index: int) -> None:
        report = self.report
        rng = Random(f"{report.seed}:{index}")
        (family,) = rng.choices(
            [name for name, _ in FAMILIES], weights=[share for _, share in FAMILIES]
        )
        try:
            kind, outcome = await self._attack(rng, family)
        except OSError as error:
            kind, outcome = "connection", Outcome("refused", repr(error))
        report.inputs += 1
        report.kinds[f"{family}: {kind}"] += 1
        report.outcomes[family, outcome.label] += 1
        if outcome.finding:
            report.findings.append(Finding(index, f"{family}: {kind}", outcome.finding))
            self._say(f"FINDING {index} {family}: {kind}: {outcome.finding}")

    async def _attack(self, rng: Random, family: str) -> tuple[str, Outcome]:
        addresses = self._fleet.addresses
        if family == "http":
            kind = rng.choice(sorted(http_wires.MAKERS))
            return kind, await exchange(addresses.rest, http_wires.MAKERS[kind](rng))
        if family == "json":
            return "bodies", await exchange(addresses.rest, json_bodies.wire(rng, "tiny"))
        role = rng.choice(sorted(addresses.rpc()))
        if family == "http2":
            kind = rng.choice(sorted(http2_wires.MAKERS))
            paths = [method.path for method in rpc_calls.OWN_METHODS[role]]
            method = rng.choice([path for path in paths if path != rpc_calls.DRAIN])
            pieces = http2_wires.MAKERS[kind](rng, method)
            return kind, await exchange2(addresses.rpc()[role], pieces)
        if family == "rpc":
            kind = rng.choice(sorted(rpc_calls.CASES))
            return kind, await rpc_calls.CASES[kind](rng, role, self._channels[role])
        real = rng.choice(self._genuine)
        return "steps", await handoffs.handoff(rng, self._channels["decode"], real)

    async def _examine(self, *, first: bool = False) -> None:
        held = await self._patient.idle()
        if held:
            self._found("held", f"still held: {held}")
        answer = await self._patient.canary()
        if answer != self._canary:
            self._found("canary", f"{answer!r} instead of {self._canary!r}")
        await self._patient.idle()
        if not first:
            start = self.report.vitals[0][1]
            await settled(lambda: not self._files_above(start))
            if above := self._files_above(start):
                self._found("files", f"open files did not come back: {above}")
        vitals = self._fleet.vitals()
        if not first and any(vitals[r].pid != v.pid for r, v in self.report.vitals[0][1].items()):
            self._found("process", "a role was restarted")
        self.report.vitals.append((self.report.inputs, vitals))
        complaints = self._fleet.complaints()
        for line in complaints[self._complaints :]:
            self._found("log", line[:2_000])
        self._complaints = len(complaints)
        self._say(self.report.lines()[0])

    def _files_above(self, start: dict[str, Vitals]) -> dict[str, tuple[int, int]]:
        now = self._fleet.vitals()
        return {
            role: (before.files, now[role].files)
            for role, before in start.items()
            if now[role].files > before.files + SPARE_FILES
        }

    def _found(self, kind: str, what: str) -> None:
        self.report.findings.append(Finding(-1, kind, what))
        self._say(f"FINDING at {self.report.inputs} {kind}: {what}")


async def exchange2(address: str, pieces: tuple[bytes, ...]) -> Outcome:
    """Sends bytes to a gRPC port; only the end of the connection is judged."""
    return await exchange(address, Wire(pieces=pieces), speaks_http=False)

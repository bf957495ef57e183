"""Files of load runs whose server was a simulated one."""

from pathlib import Path

from loadtest.load.outcome import Outcome
from loadtest.load.record import Record
from loadtest.load.results import write_results
from loadtest.load.schedule import schedule_of
from loadtest.load.settings import LoadSettings
from loadtest.load.workloads import Profile
from loadtest.plan.arms import arm_named
from loadtest.plan.cluster import Cluster, GatewayRules, Split
from loadtest.plan.work import costs_of
from tests.support.plan_parts import made_profile

PROFILE = made_profile()
SPLIT = Split(prefill=2, decode=1)


def record(folder: Path, **changes: object) -> list[Outcome]:
    """A run whose server was a simulated one, in the files of a load run."""
    settings = LoadSettings(
        host="http://127.0.0.1:1",
        out=folder,
        workload="mixed",
        profile=Profile.CPU,
        rate=1.0,
        seconds=120,
        figures=False,
        **changes,  # type: ignore[arg-type]
    )
    scheduled = schedule_of(settings)
    cluster = Cluster(
        PROFILE,
        split=SPLIT,
        rules=GatewayRules(),
        costs=costs_of([r for _, r in scheduled], PROFILE, arm_named(PROFILE, "both")),
        seed=0,
    )
    outcomes = cluster.run([arrival.due_s for arrival, _ in scheduled]).outcomes
    write(settings, outcomes)
    return outcomes


def write(settings: LoadSettings, outcomes: list[Outcome], *, complete: bool = True) -> None:
    write_results(
        Record(planned=len(outcomes), outcomes=outcomes[::-1], complete=complete),
        settings,
        server={"model": "made up", "version": "1", "fingerprint": "f"},
        machine={"command": "", "commit": "", "uncommitted_changes": False, "hardware": {}},
    )

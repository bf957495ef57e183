"""Malformed HTTP and gRPC: no crash, no leak, no answer that a client could not rely on.

The default run is short and in this process, where tasks can be counted too; `-m slow` sends 50,000
inputs to whole processes, as `python -m tests.fuzz` does with any seed and count.
"""

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.fuzz import json_bodies
from tests.fuzz.campaign import Campaign
from tests.fuzz.fleet import Addresses, Vitals, running_fleet, vitals_of
from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.gateway_rig import until

SEED = 11
FEW, MANY = 250, 50_000
SHORT = 1.0
"""Leases of the short run, in seconds: what an input leaves behind must end by itself."""
SPARE_BYTES = 96 * 2**20
"""What a role may grow by between a tenth of the inputs and all of them: caches that fill up."""


class StackFleet:
    """The three roles inside this process."""

    def __init__(self, stack: Stack, complaints: list[str]) -> None:
        self._complaints = complaints
        self.addresses = Addresses(
            rest=stack.gateway.rest_address,
            gateway=stack.gateway.grpc_address,
            prefill=stack.prefill.app.address,
            decode=stack.decode.address,
        )

    def vitals(self) -> dict[str, Vitals]:
        return {"all": vitals_of(os.getpid())}

    def complaints(self) -> list[str]:
        return self._complaints


async def test_a_few_malformed_inputs(tiny_model_dir: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    with capture_logs() as logs:
        async with running_stack(
            tiny_model_dir,
            write_profile(tmp_path),
            prefill={"sealed_lease_s": SHORT, "reserve_wait_s": SHORT},
            decode={
                "lease_s": SHORT,
                "adopt_lease_s": SHORT,
                "quarantine_s": SHORT,
                "commit_wait_s": 0.2,
            },
        ) as stack:
            before = len(asyncio.all_tasks())
            fleet = StackFleet(stack, lines)
            campaign = Campaign(fleet, seed=SEED, every=FEW, say=print)
            report = await campaign.run(0, FEW)

            async def nothing_goes_on() -> bool:
                return len(asyncio.all_tasks()) <= before

            # What served the last inputs ends soon after them, not with them.
            await until(nothing_goes_on, timeout_s=30.0)
    lines += [str(entry) for entry in logs if entry["log_level"] in {"error", "critical"}]
    assert report.inputs == FEW
    assert not report.findings, "\n".join(report.lines())
    assert not lines


@pytest.mark.slow
@pytest.mark.timeout(3 * 3_600)
def test_fifty_thousand_malformed_inputs(tiny_model_dir: Path) -> None:
    with running_fleet(tiny_model_dir) as fleet:
        report = asyncio.run(Campaign(fleet, seed=SEED, every=1_000, say=print).run(0, MANY))
    print("\n".join(report.lines()))
    assert report.inputs == MANY
    assert not report.findings
    warm, last = report.vitals[len(report.vitals) // 10][1], report.vitals[-1][1]
    for role, vitals in last.items():
        assert vitals.rss < warm[role].rss + SPARE_BYTES, role


def test_every_operation_with_a_body_is_fuzzed() -> None:
    paths = {path.replace("{worker_id}", "nobody") for path in json_bodies.described_paths()}
    assert paths <= set(json_bodies.PATHS)

"""A real Prometheus on a free port, which scrapes what a test names and evaluates its rules."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.gateway_rig import until
from tests.support.redis_server import free_port

PROGRAM = shutil.which("prometheus")
HAS_PROMETHEUS = pytest.mark.skipif(
    PROGRAM is None, reason="prometheus is not installed (Debian: package prometheus)"
)


@dataclass(frozen=True)
class Prometheus:
    """What a test asks."""

    http: httpx.AsyncClient

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression comes to now: `metric` and `value` of each."""
        answer = await self.http.get("/api/v1/query", params={"query": expression})
        found = answer.json()
        assert found["status"] == "success", (expression, found)
        series: list[dict[str, Any]] = found["data"]["result"]
        return series

    async def rules(self) -> list[dict[str, Any]]:
        """Every rule with its `health` and `lastError`."""
        answer = await self.http.get("/api/v1/rules")
        return [rule for group in answer.json()["data"]["groups"] for rule in group["rules"]]

    async def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            return (await self.http.get("/-/ready")).is_success
        except httpx.TransportError:
            return False


@asynccontextmanager
async def running_prometheus(
    folder: Path, *, targets: Mapping[str, str], rules: Path, every: str = "500ms"
) -> AsyncIterator[Prometheus]:
    """Starts one.

    Args:
        folder: takes its settings, log and data.
        targets: address by job.
        rules: file of its rules.
        every: between two scrapes, and between two evaluations of the rules.
    """
    assert PROGRAM is not None, "the test is skipped without it"
    settings = {
        "global": {
            "scrape_interval": every,
            "scrape_timeout": every,
            "evaluation_interval": every,
        },
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]}
            for job, address in targets.items()
        ],
    }
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    port = free_port()
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
        try:
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, timeout=30.0) as http:
                prometheus = Prometheus(http)
                await until(prometheus.is_ready, timeout_s=60.0)
                yield prometheus
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

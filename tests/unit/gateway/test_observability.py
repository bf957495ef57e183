"""Telemetry that is off costs nothing, not even an installed library."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CODE = """
import sys
sys.modules["opentelemetry"] = None
from gateway.app import Gateway
from gateway.config import GatewayConfig
Gateway(GatewayConfig(otlp_endpoint=""))
assert not {"shared.telemetry.otel", "shared.telemetry.otel_metrics"} & set(sys.modules)
"""


def test_without_a_collector_the_library_is_not_needed() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, cwd=ROOT, timeout=60)

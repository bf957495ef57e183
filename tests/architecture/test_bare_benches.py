"""Benches that promise to need torch and triton only: a GPU machine may have nothing else."""

import subprocess
import sys

import pytest

BENCHES = (
    "attention_libraries",
    "capacity",
    "decode_step",
    "generation",
    "kernels",
    "peer_run",
    "prefill_pass",
)

_WITHOUT = """
import importlib.abc, importlib, sys

class Missing(importlib.abc.MetaPathFinder):
    names = {
        "fastapi", "gguf", "google", "grpc", "grpc_health", "grpc_reflection", "grpc_status",
        "hiredis", "httpx", "jinja2", "llguidance", "locust", "opentelemetry", "orjson",
        "prometheus_client", "pydantic", "redis", "rich", "safetensors", "starlette", "structlog",
        "tokenizers", "transformers", "typer", "uvicorn", "uvloop", "yaml", "zlib_ng",
    }

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(f"{name} is not installed, as on a bare GPU machine")

sys.meta_path.insert(0, Missing())
for bench in sys.argv[1:]:
    importlib.import_module(f"loadtest.micro.{bench}")
"""


@pytest.mark.parametrize("bench", BENCHES)
def test_a_bench_is_imported_without_what_a_server_needs(bench):
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT, bench], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-800:]

"""Prefill and decode in processes of their own, with NIXL between them."""

from pathlib import Path

import httpx
import pytest

from tests.support.decode_server import write_profile
from tests.support.full_stack import running_stack
from tests.support.processes import running_up
from tests.support.transfer_parts import needs_nixl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300), needs_nixl]

BODY = {
    "prompt": "The quick brown fox jumps over the lazy dog. " * 12,
    "max_tokens": 12,
    "temperature": 0,
    "ignore_eos": True,
}


async def test_processes_over_nixl_answer_as_one_process_over_grpc(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = write_profile(tmp_path)
    async with running_stack(tiny_model_dir, profile) as stack:
        wanted = (await stack.http.post("/v1/completions", json=BODY)).json()
    assert wanted["tandem"]["transport"] == "grpc"
    for role in ("PREFILL", "DECODE"):
        monkeypatch.setenv(f"TANDEM_{role}__REQUIRE_TRANSPORT", "nixl")
        monkeypatch.setenv(f"TANDEM_{role}__PROFILE", str(profile))
    with running_up("--model", str(tiny_model_dir)) as up:
        async with httpx.AsyncClient(base_url=up.url, timeout=60.0) as http:
            for _ in range(3):
                answer = (await http.post("/v1/completions", json=BODY)).json()
                assert answer["tandem"]["transport"] == "nixl"
                assert answer["choices"][0]["text"] == wanted["choices"][0]["text"]
            health = (await http.get("/health")).json()
    assert [worker["transports"] for worker in health["workers"]] == [["nixl"], ["nixl"]]

"""The whole pair over each transport: the same tokens, nothing left behind, and who says what."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from decode_service.app import DecodeServer
from decode_service.config import DecodeConfig
from prefill_service.app import PrefillApp
from prefill_service.config import PrefillConfig
from shared.errors import ConfigError
from shared.transport import nixl_library
from shared.transport.ranking import MEMORY_KIND
from tests.support.decode_server import write_profile
from tests.support.full_stack import Stack, running_stack
from tests.support.transfer_parts import needs_nixl

PROMPTS = ("fox " * 70, "The quick brown fox jumps over the lazy dog. " * 9)
BOTH = {"transports": ("nixl", "grpc")}


async def answers(stack: Stack) -> list[Mapping[str, Any]]:
    """Text and report of each prompt, whole and pruned."""
    found = []
    for prompt in PROMPTS:
        for mode in ("full", "both"):
            body = {
                "prompt": prompt,
                "max_tokens": 12,
                "temperature": 0,
                "ignore_eos": True,
                "tandem": {"mode": mode},
            }
            answer = await stack.http.post("/v1/completions", json=body)
            answer.raise_for_status()
            found.append(answer.json())
    return found


def texts(found: list[Mapping[str, Any]]) -> list[str]:
    return [answer["choices"][0]["text"] for answer in found]


@needs_nixl
async def test_both_transports_serve_the_same_tokens(tiny_model_dir: Path, tmp_path: Path) -> None:
    profile = write_profile(tmp_path)
    served = {}
    for name, memory in (("grpc", "host"), ("nixl", "host"), ("nixl", "device")):
        ways = {"require_transport": name, "kv_memory": memory}
        async with running_stack(tiny_model_dir, profile, prefill=ways, decode=ways) as stack:
            served[name, memory] = await answers(stack)
            assert stack.decode.core.memory.landing.kind.value == memory
            health = (await stack.http.get("/health")).json()
            assert {worker["place"]["kv_memory"] for worker in health["workers"]} == {memory}
        assert {answer["tandem"]["transport"] for answer in served[name, memory]} == {name}
    wanted = texts(served["grpc", "host"])
    assert len(set(wanted)) > 1
    for found in served.values():
        assert texts(found) == wanted


@needs_nixl
@pytest.mark.parametrize(("ours", "theirs"), [("device", "host"), ("host", "device")])
async def test_two_kinds_of_memory_fall_back_by_name_and_serve(
    tiny_model_dir: Path, tmp_path: Path, ours: str, theirs: str
) -> None:
    profile = write_profile(tmp_path)
    async with running_stack(
        tiny_model_dir,
        profile,
        prefill={**BOTH, "kv_memory": ours},
        decode={**BOTH, "kv_memory": theirs},
    ) as stack:
        found = await answers(stack)
        assert {answer["tandem"]["transport"] for answer in found} == {"grpc"}
        labels = {"transport": "nixl", "reason": MEMORY_KIND}
        value = stack.prefill.app.registry.get_sample_value
        assert value("tandem_transport_fallbacks_total", labels) == len(found)
        [nixl] = [
            pair for pair in stack.prefill.app.engine.load().pairs if pair.transport == "nixl"
        ]
        assert nixl.rejected == MEMORY_KIND
        assert f"in {ours} memory on the prefill worker and in {theirs}" in nixl.reason
    same = {"require_transport": "grpc"}
    async with running_stack(tiny_model_dir, profile, prefill=same, decode=same) as stack:
        assert texts(await answers(stack)) == texts(found)


def without_nixl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where the package is not installed."""
    found = importlib.util.find_spec
    absent = {module for module, _ in nixl_library._PACKAGES}

    def find_spec(name: str, package: str | None = None) -> object:
        return None if name in absent else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


async def test_an_absent_transport_is_told_everywhere_and_the_other_serves(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_nixl(monkeypatch)
    profile = write_profile(tmp_path)
    async with running_stack(tiny_model_dir, profile, prefill=BOTH, decode=BOTH) as stack:
        assert {answer["tandem"]["transport"] for answer in await answers(stack)} == {"grpc"}
        health = (await stack.http.get("/health")).json()
        assert {worker["role"] for worker in health["workers"]} == {"prefill", "decode"}
        for worker in health["workers"]:
            assert worker["transports"] == ["grpc"]
            [reason] = worker["rejected_transports"]
            assert reason.startswith("nixl: package nixl-cu13 is not installed")
        for registry in (stack.prefill.app.registry, stack.decode._registry):
            value = registry.get_sample_value
            assert value("tandem_transport_info", {"transport": "grpc"}) == 1
            labels = {"transport": "nixl", "reason": "not_installed"}
            assert value("tandem_transport_rejected", labels) == 1


async def test_a_required_transport_that_is_absent_refuses_the_start(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_nixl(monkeypatch)
    settings: dict[str, Any] = {"port": 0, "admin_port": 0, "model": str(tiny_model_dir)}
    settings["require_transport"] = "nixl"
    decode = DecodeServer(DecodeConfig(**settings, slab_bytes=1 << 20, kv_bytes=1 << 22))
    prefill = PrefillApp(PrefillConfig(**settings))
    with pytest.raises(ConfigError, match=r"required.*nixl: package nixl-cu13 is not installed"):
        await decode.start()
    await decode.stop()
    with pytest.raises(ConfigError, match=r"required.*nixl: package nixl-cu13 is not installed"):
        await prefill.start()
    await prefill.close()


async def test_an_unknown_transport_is_a_wrong_setting(tiny_model_dir: Path) -> None:
    config = DecodeConfig(
        port=0, admin_port=0, model=str(tiny_model_dir), transports=("carrier-pigeon",)
    )
    decode = DecodeServer(config)
    with pytest.raises(ConfigError, match="unknown transport 'carrier-pigeon'"):
        await decode.start()
    await decode.stop()

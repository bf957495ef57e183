"""A worker's attention: PyTorch's on a CPU, and the log tells what was measured on a device."""

import pytest
import torch
from structlog.testing import capture_logs

from prefill_service.engine import attention
from prefill_service.engine.attention import probe_for
from prefill_service.engine.warm_up import warm_up_tokens
from shared.model.device_attention import DeviceAttention, KernelRange
from shared.model.exact_attention import HeadShape
from shared.model.plain_attention import PlainKernel
from shared.model.probe import AttentionChoice
from shared.model.transformer import Transformer


def test_a_cpu_measures_nothing(tiny_model: Transformer) -> None:
    with capture_logs() as logs:
        choice = probe_for(tiny_model)
    assert choice.backend.name == "torch"
    assert logs == []


def test_the_log_tells_what_was_measured(
    tiny_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[HeadShape] = []

    def probe(device: torch.device, *, shape: HeadShape) -> AttentionChoice:
        assert device == tiny_model.device
        asked.append(shape)
        ranges = (KernelRange(up_to=None, kernel=PlainKernel()),)
        times = {"plain": {1024: 0.000_12}, "other": {1024: 0.5}}
        return AttentionChoice(backend=DeviceAttention(ranges), rejected=(), seconds=times)

    monkeypatch.setattr(attention, "probe_attention", probe)
    with capture_logs() as logs:
        choice = probe_for(tiny_model)
    assert choice.backend.name == "plain"
    (line,) = logs
    assert line["event"] == "attention measured"
    assert line["serves"] == "plain"
    assert line["serves_blocks"] == "torch"
    assert line["us_a_layer"] == {"plain": {1024: 120}, "other": {1024: 500_000}}
    assert asked == [
        HeadShape(num_heads=4, num_kv_heads=2, head_dim=16, dtype=torch.float32, max_tokens=1024)
    ]


def test_the_first_prompt_of_a_device_is_pruned_by_every_profile() -> None:
    assert warm_up_tokens("cpu") == 32
    assert warm_up_tokens("cuda:1") == 2048

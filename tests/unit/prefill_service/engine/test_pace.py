"""The engine stays ahead of a device by work, not by layers."""

import torch

from prefill_service.engine.pace import LAYERS_AHEAD, Pace, mark_for


class Device:
    """Notes which layers were waited for."""

    def __init__(self) -> None:
        self.enqueued = 0
        self.waited_for: list[int] = []

    def mark(self) -> "Layer":
        self.enqueued += 1
        return Layer(self, self.enqueued - 1)


class Layer:
    def __init__(self, device: Device, index: int) -> None:
        self._device, self._index = device, index

    def synchronize(self) -> None:
        self._device.waited_for.append(self._index)


def waits(prompt_tokens: int, layers: list[int]) -> list[list[int]]:
    """Layers that were waited for after each one was enqueued."""
    device, found = Device(), []
    pace = Pace(prompt_tokens, mark=device.mark)
    for tokens in layers:
        device.waited_for = []
        pace.layer_enqueued(tokens)
        found.append(device.waited_for)
    return found


def test_whole_layers_are_counted() -> None:
    assert waits(20_000, [20_000] * 7) == [[]] * LAYERS_AHEAD + [[0], [1], [2]]


def test_a_pruned_layer_counts_for_less() -> None:
    found = waits(20_000, [20_000] * 5 + [2_000] * 22)
    assert found[4] == [0]
    assert found[5] == [1]
    assert found[6:15] == [[]] * 9, "ten of them are one whole layer"
    assert found[15] == [2]


def test_a_short_prompt_is_never_waited_for() -> None:
    assert waits(100, [100] * 200) == [[]] * 200


def test_a_cpu_is_done_when_its_call_returns() -> None:
    assert mark_for(torch.device("cpu")) is None
    Pace(10**6, mark=None).layer_enqueued(10**9)

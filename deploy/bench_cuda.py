"""`tandem bench prefill|decode|kernels` on a GPU: hands flags to the benchmarks of kernels."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec

import torch

from deploy.lists import numbers_in
from shared.errors import ConfigError


def run_kernels(name: str, flags: Sequence[str], *, device: str = "cuda", as_json: bool) -> None:
    """Runs `python -m loadtest.micro.<name>` in this process.

    Args:
        name: of the benchmark.
        flags: its own, without those that follow.
        device: `cuda`, or `cpu` for Triton's interpreter.
        as_json: print one JSON object.

    Raises:
        ConfigError: there is no Triton, or no GPU.
        TandemError: as the benchmark does.
    """
    no_gpu = device == "cuda" and not torch.cuda.is_available()
    if find_spec("triton") is None:
        raise ConfigError(
            "this benchmark runs Triton kernels, and package triton is not installed: install "
            "Tandem's extra gpu"
            + (", on a machine with a GPU: PyTorch sees no CUDA device here" if no_gpu else ""),
            code="no_device" if no_gpu else None,
        )
    if no_gpu:
        raise ConfigError(
            "--device cuda: PyTorch sees no CUDA device on this machine; see `tandem doctor`, or "
            "use --device cpu",
            code="no_device",
        )
    # It imports Triton, which machines without a GPU need not have.
    benchmark = import_module(f"loadtest.micro.{name}")
    benchmark.main(["--device", device, *flags, *(["--json"] if as_json else [])])


def as_flags(
    asked: Mapping[str, object], *, lists: Mapping[str, Callable[[str], float]] | None = None
) -> list[str]:
    """Flags of what was asked for, for a benchmark to read.

    Args:
        asked: values by flag; None was not asked for.
        lists: flags whose values are comma-separated, and how each part is read.

    Raises:
        ConfigError: a list has a part that cannot be read.
    """
    given = {flag: value for flag, value in asked.items() if value is not None}
    for flag, read in (lists or {}).items():
        if flag in given:
            like = "1,4" if read is int else "0.2,1.0"
            numbers_in(str(given[flag]), flag=flag, kind=read, like=like, above=0)
    return [f"{flag}={value}" for flag, value in given.items()]


def refuse(device: str, asked: Mapping[str, object], *, further: Sequence[str] = ()) -> None:
    """Nothing that was asked for may be left out silently.

    Args:
        device: where the benchmark runs.
        asked: values by flag that mean nothing there; None was not asked for.
        further: flags that nobody knows there.

    Raises:
        ConfigError: something was asked for.
    """
    meant = [flag for flag, value in asked.items() if value is not None]
    if meant or further:
        raise ConfigError(
            f"{', '.join([*meant, *further])} cannot be used with --device {device}: leave it "
            "out, or choose the other device; --help says which options belong to which"
        )

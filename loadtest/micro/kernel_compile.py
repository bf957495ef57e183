"""Compiles every kernel for a GPU that need not be there, and tells what each would occupy.

The launchers run as they are, on tensors of the CPU; in place of a launch stands a compilation, by
Triton's own compiler and the assembler of its wheel. Registers that spill and shared memory that
does not fit show up before a device is held.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from shared.errors import InternalError

_WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """What one compiled kernel occupies."""

    name: str
    """Function of the kernel."""
    warps: int
    """Warps of a program."""
    registers: int
    """Of a thread."""
    spilled_bytes: int
    """Of a thread's registers, in local memory; 0 is as it should be."""
    shared_bytes: int
    """Shared memory of a program."""


@contextmanager
def compiling_for(capability: int) -> Iterator[list[CompiledKernel]]:
    """Within, a launch compiles for compute capability `capability` (90: H100, H200), runs nothing.

    Yields:
        The kernels, in the order of their first launch; filled while the block runs.
    """
    compiled: list[CompiledKernel] = []
    seen: set[str] = set()
    run = JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: Any, warmup: bool, **sizes: Any) -> Any:  # noqa: ANN401
        del warmup
        made = run(kernel, *args, grid=grid, warmup=True, **sizes)
        if made.hash not in seen:
            seen.add(made.hash)
            compiled.append(_occupied(made))
        return made

    target = GPUTarget("cuda", capability, _WARP)
    stand_in = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda _: 0,
        get_current_target=lambda: target,
    )
    # The default driver asks for a device at once, and there may be none to go back to.
    before = driver._active  # noqa: SLF001
    driver.set_active(stand_in)
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = run
        driver._active = before  # noqa: SLF001


def _occupied(made: Any) -> CompiledKernel:  # noqa: ANN401 - Triton's objects have no types
    """Reads a compiled kernel's resources from its binary.

    Raises:
        InternalError: the tool of Triton's wheel answers in another form.
    """
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        told = subprocess.run(  # noqa: S603  a tool of the wheel, on a file of our own
            [str(tool), "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    figures = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", told)}
    if not {"REG", "STACK", "LOCAL"} <= figures.keys():
        raise InternalError(
            f"cuobjdump told no registers of {made.metadata.name}: Triton's wheel has another "
            "version of the tool; mend the reading of its output"
        )
    return CompiledKernel(
        name=made.metadata.name,
        warps=made.metadata.num_warps,
        registers=figures["REG"],
        spilled_bytes=figures["STACK"] + figures["LOCAL"],
        shared_bytes=made.metadata.shared,
    )

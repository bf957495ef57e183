"""The exact attention kernels of packages that are optional: flash-attn 4 and 2, and FlashInfer.

None is imported before it is called. What each was run on is told in README.md, "Attention
backends"; the comparison at start stands behind all of them (`kernel_choice`). By their
documentation all three align their causal mask at the last query and the last key.

Shapes: T queries, S keys, P tokens of a prompt, H query heads, G KV heads, D head size.
"""

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shared.errors import ConfigError

FLASHINFER_HEAD_SIZES = (64, 128, 256)
"""Head sizes of its kernels for tensor cores; others would fail, after a minute of compiling."""


@dataclass(frozen=True, slots=True)
class FlashAttn4Kernel:
    """The package flash-attn-4 (extra `flash`), written in CuTe; its kernels compile at first use.

    Both this package and the older one are imported as `flash_attn`: this one is only the module
    `flash_attn.cute` in it.
    """

    @property
    def name(self) -> str:
        """`flash_attn_4`."""
        return "flash_attn_4"

    @property
    def missing(self) -> str | None:
        """The package may be missing; `flash_attn` alone is the older one."""
        return why_missing("flash_attn.cute", "flash-attn-4")

    def padded(self, tokens: int) -> int:
        """As many."""
        return tokens

    def attend(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `ExactKernel.attend`."""
        from flash_attn.cute import flash_attn_func  # noqa: PLC0415  an optional extra

        # With and without the log-sum-exp are two kernels to compile, seconds each: one serves.
        out_1THD, lse_1HT = flash_attn_func(
            q_THD[None], k_SGD[None], v_SGD[None], causal=True, return_lse=True
        )
        return out_1THD[0], lse_1HT[0].t() if want_lse else None


@dataclass(frozen=True, slots=True)
class FlashAttn2Kernel:
    """The classic package flash-attn 2, where a user has it; no extra, it is a source package."""

    @property
    def name(self) -> str:
        """`flash_attn`."""
        return "flash_attn"

    @property
    def missing(self) -> str | None:
        """The package may be missing, or built for another PyTorch."""
        return why_missing("flash_attn.flash_attn_interface", "flash-attn")

    def padded(self, tokens: int) -> int:
        """As many."""
        return tokens

    def attend(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `ExactKernel.attend`."""
        from flash_attn.flash_attn_interface import flash_attn_func  # noqa: PLC0415  optional

        # With "probabilities" it tells the log-sum-exp; the probabilities themselves stay empty.
        out_1THD, lse_1HT, _ = flash_attn_func(
            q_THD[None], k_SGD[None], v_SGD[None], causal=True, return_attn_probs=True
        )
        return out_1THD[0], lse_1HT[0].t() if want_lse else None


@dataclass(frozen=True, slots=True)
class FlashInferKernel:
    """FlashInfer's single prefill (extra `flashinfer`); compiled by nvcc at first use."""

    @property
    def name(self) -> str:
        """`flashinfer`."""
        return "flashinfer"

    @property
    def missing(self) -> str | None:
        """The package may be missing."""
        return why_missing("flashinfer", "flashinfer-python")

    def padded(self, tokens: int) -> int:
        """As many."""
        return tokens

    def attend(
        self, q_THD: Tensor, k_SGD: Tensor, v_SGD: Tensor, *, want_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        """See `ExactKernel.attend`."""
        from flashinfer import single_prefill_with_kv_cache  # noqa: PLC0415  an optional extra

        if q_THD.shape[2] not in FLASHINFER_HEAD_SIZES:
            sizes = ", ".join(map(str, FLASHINFER_HEAD_SIZES))
            raise ConfigError(f"head size {q_THD.shape[2]} is none of FlashInfer's, {sizes}")
        found: Any = single_prefill_with_kv_cache(
            q_THD, k_SGD, v_SGD, causal=True, return_lse=want_lse
        )
        if not want_lse:
            return found, None
        out_THD, lse_TH = found
        return out_THD, lse_TH * math.log(2.0)  # it counts in powers of two


def why_missing(module: str, package: str) -> str | None:
    """Why a module of an optional package cannot be had, as far as that shows; None: it can.

    Args:
        module: full name; the packages that hold it are imported, the module itself is not.
        package: as users install it.
    """
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package that holds it
        found = None
    except ImportError as error:  # of compiled parts that fit another PyTorch, for instance
        return f"package {package} cannot be imported: {error}"
    return f"package {package} is not installed" if found is None else None

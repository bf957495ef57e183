"""The process of a decode worker, with the prefill engine that its settings may ask for.

Both services stay apart: neither imports the other, and only this file puts them into one process.
"""

import sys
from dataclasses import replace
from pathlib import Path

from decode_service.__main__ import main
from decode_service.config import DecodeConfig
from prefill_service.config import PrefillConfig
from prefill_service.local import LocalPrefill
from shared.config.loader import load_config
from shared.transport import loopback


def open_local(config: DecodeConfig, *, settings_file: Path | None) -> LocalPrefill:
    """The prefill engine of a decode worker: [prefill] settings over the worker's own model.

    Args:
        config: of the decode worker.
        settings_file: the file that it was given; None looks for the usual one.

    Raises:
        ConfigError: the prefill settings are wrong.
    """
    loaded = load_config(PrefillConfig, section="prefill", flags={}, file=settings_file)
    return LocalPrefill(prefill_settings(loaded.value, worker=config))


def prefill_settings(own: PrefillConfig, *, worker: DecodeConfig) -> PrefillConfig:
    """What both must have alike is the worker's; queue, chunks, holds and patience stay its own."""
    return replace(
        own,
        model=worker.model,
        model_name=worker.model_name,
        cache_dir=worker.cache_dir,
        dtype=worker.dtype,
        device=worker.device,
        threads=worker.threads,
        profile=worker.profile,
        max_model_len=worker.max_model_len,
        transports=(loopback.NAME,),
        require_transport="",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], open_local=open_local))

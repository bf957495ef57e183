"""Where the figures of a study come from: command, commit, hardware, software, model, profile."""

import dataclasses
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import torch

from loadtest.facts import Run
from loadtest.micro.measure import provenance
from shared.model.weights import LoadedModel
from shared.types.methods import PruningParams, SparsityParams


def run_of(
    loaded: LoadedModel, *, dtype: str, command: str, commit: str, with_sparsity: bool = False
) -> Run:
    """The record of a run that begins now; a store numbers it.

    Args:
        loaded: the model that is measured.
        dtype: type of its weights and KV.
        command: command line.
        commit: commit of the code where it is no git checkout; empty: asks git.
        with_sparsity: record the profile's page selection as well.
    """
    found = provenance(command=command)
    changed = " with uncommitted changes" if found["uncommitted_changes"] else ""
    profile = loaded.profile
    return Run(
        run=0,
        command=command,
        commit=commit or f"{found['commit']}{changed}",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        hardware=_hardware(loaded.model.device, found["hardware"], threads=found["threads"]),
        software=(
            f"Python {platform.python_version()}, torch {found['torch']}, "
            f"transformers {found['transformers']}"
        ),
        model=loaded.name,
        model_hash=loaded.model.identity(loaded.name).model_hash,
        dtype=dtype,
        profile=profile.label,
        pruning=plain_fields(profile.pruning),
        sparsity=plain_fields(profile.sparsity) if with_sparsity else {},
    )


def plain_fields(params: PruningParams | SparsityParams) -> dict[str, Any]:
    """Fields of a method's parameters as JSON values."""
    return {field.name: _plain(getattr(params, field.name)) for field in dataclasses.fields(params)}


def _hardware(device: torch.device, cpu: Mapping[str, Any], *, threads: int) -> str:
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    return f"{cpu['cpu']}, {threads} of {cpu['cores']} cores"


def _plain(value: Any) -> Any:  # noqa: ANN401  values of any one parameter
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value

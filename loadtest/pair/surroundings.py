"""What stands around a measured pair: its GPUs, the links between them, and what health tells."""

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import httpx

from shared.errors import UnavailableError

_SMI = "nvidia-smi"
_GPU_FIELDS = "index,name,uuid,driver_version,memory.total"
_PLACE_FIELDS = (
    "worker_id",
    "role",
    "device",
    "transports",
    "rejected_transports",
    "place",
    "pairs",
)


def gpu_facts() -> dict[str, Any]:
    """GPUs and their topology as the driver's own tool prints them; empty where there is none."""
    if shutil.which(_SMI) is None:
        return {"gpus": [], "topology": ""}
    table = _smi(f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader")
    names = _GPU_FIELDS.split(",")
    gpus = [
        dict(zip(names, (part.strip() for part in line.split(",")), strict=False))
        for line in table.splitlines()
    ]
    return {"gpus": gpus, "topology": _smi("topo", "-m")}


def pair_facts(url: str) -> dict[str, Any]:
    """Version, model, context and workers of a gateway, and how each pair of workers is joined.

    Raises:
        UnavailableError: it cannot be reached.
    """
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=30.0) as client:
            health, version, properties = (
                client.get(path).raise_for_status().json()
                for path in ("/health", "/version", "/props")
            )
    except httpx.HTTPError as error:
        raise UnavailableError(
            f"{url} does not tell of its workers ({error}): it is no gateway, or not up; "
            "give another --url"
        ) from error
    workers: list[Mapping[str, Any]] = health["workers"]
    return {
        "version": version["version"],
        "model": properties["model"],
        "max_model_len": properties["max_model_len"],
        "workers": [
            {name: worker[name] for name in _PLACE_FIELDS if name in worker} for worker in workers
        ],
    }


def _smi(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603  fixed arguments of our own
        [_SMI, *arguments], capture_output=True, text=True, check=False, timeout=30
    )
    return done.stdout.strip() if done.returncode == 0 else ""

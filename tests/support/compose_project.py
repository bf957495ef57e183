"""docker-compose.yml as Docker Compose itself reads it; `config` needs no daemon."""

import functools
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = ROOT / "docker-compose.yml"
GPU = ROOT / "deploy" / "docker" / "docker-compose.gpu.yml"
X86_64_LINUX = (platform.system(), platform.machine()) == ("Linux", "x86_64")
"""Where packages bring Docker Compose and Helm; there, what is missing is a failure."""

ROLES = ("prefill", "decode", "gateway")

Service = dict[str, Any]
Project = dict[str, Any]


@functools.cache
def compose_command() -> tuple[str, ...] | None:
    """Docker Compose: a package's for x86-64 Linux, elsewhere one that is installed, or None."""
    packaged = importlib.util.find_spec("compose")
    if packaged is not None and packaged.origin is not None:
        # Its program itself: the script that the package installs loses the exit code.
        return (str(Path(packaged.origin).with_name("docker-compose")),)
    docker = shutil.which("docker")
    if docker is None:
        return None
    version = subprocess.run([docker, "compose", "version"], capture_output=True, check=False)
    return (docker, "compose") if version.returncode == 0 else None


HAS_COMPOSE = pytest.mark.skipif(
    not X86_64_LINUX and compose_command() is None, reason="Docker Compose is not installed"
)


def tool(name: str) -> str:
    """Path of a program that a package brought, else of an installed one."""
    packaged = Path(sys.executable).with_name(name)
    return str(packaged) if packaged.is_file() else shutil.which(name) or name


def compose_config(
    *files: Path, profiles: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """`docker compose config` as JSON; nothing but `environ` is interpolated."""
    chosen = [part for file in files for part in ("-f", str(file))]
    chosen += [part for profile in profiles for part in ("--profile", profile)]
    chosen += ["--project-directory", str(ROOT)]
    command = compose_command()
    assert command is not None, "run `make setup`"
    return subprocess.run(
        [*command, *chosen, "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.defpath, "HOME": os.fspath(ROOT), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read_project(
    *files: Path, profiles: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Project:
    """The project that Compose would start."""
    result = compose_config(*(files or (BASE,)), profiles=profiles, environ=environ)
    assert result.returncode == 0, result.stderr
    project: Project = json.loads(result.stdout)
    return project


def role_of(service: Service) -> str | None:
    """The role that a service runs, or None."""
    first = (service.get("command") or [""])[0]
    return first if first in ROLES else None


def start_order(services: Mapping[str, Service]) -> list[str]:
    """Names so that each comes after what it depends on; Compose stops them the other way round."""
    order: list[str] = []

    def add(name: str) -> None:
        for needed in services[name].get("depends_on", {}):
            if needed in services and needed not in order:
                add(needed)
        if name not in order:
            order.append(name)

    for name in sorted(services):
        add(name)
    return order


def seconds(duration: str) -> float:
    """Seconds of a Compose duration like 1m30s."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([hms])", duration))

"""Every role of one machine as a unit: start in order, notice a death, end in order."""

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from deploy.config import UpConfig
from deploy.ready import ReadyLine
from deploy.role_process import LineSink, RoleProcess, RoleSpec, error_of_exit
from shared.errors import DeadlineError

PhaseSink = Callable[[str], None]
"""Takes one line about what happens now."""

ANY_PROMPT = 1 << 30
"""Tokens; longer than any context, which bounds prompts anyway."""

_POLL_S = 0.1
_END_ORDER = ("gateway", "prefill", "decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where a started cluster listens."""

    gateway: ReadyLine
    """REST, gRPC and admin addresses of the gateway."""
    prefill: tuple[ReadyLine, ...]
    """Prefill workers."""
    decode: tuple[ReadyLine, ...]
    """Decode workers."""

    @property
    def url(self) -> str:
        """Base URL of the REST API."""
        return f"http://{self.gateway.rest}"


def threads_per_worker(config: UpConfig, *, role: str, cores: int) -> int:
    """CPU threads of one worker; an explicit setting wins."""
    if role == "prefill":
        return config.prefill_threads or max(1, cores // config.prefill)
    share = cores // 2 if config.prefill else cores  # without others it computes prompts as well
    return config.decode_threads or max(1, share // config.decode)


def local_prefill_flags(config: UpConfig, *, role: str) -> tuple[str, ...]:
    """What a worker is told of prompts to read itself; without flags its settings count."""
    longest = config.local_prefill_tokens or (0 if config.prefill else ANY_PROMPT)
    if role != "decode" or not longest:
        return ()
    return ("--local-prefill-tokens", str(longest))


def device_flags(config: UpConfig, *, role: str, index: int) -> tuple[str, ...]:
    """Where one worker runs; without flags its settings count."""
    gpus = config.prefill_gpus if role == "prefill" else config.decode_gpus
    return ("--device", f"cuda:{gpus[index % len(gpus)]}") if gpus else ()


def worker_specs(
    config: UpConfig, *, cores: int, settings_file: Path | None = None
) -> list[RoleSpec]:
    """Flags of all workers, prefill first."""
    rows = (
        ("prefill", config.prefill, config.prefill_port, config.prefill_admin_port),
        ("decode", config.decode, config.decode_port, config.decode_admin_port),
    )
    return [
        RoleSpec(
            role=role,
            name=f"{role}-{index}",
            arguments=(
                "--host", "127.0.0.1",
                "--port", str(port + index if port else 0),
                "--admin-port", str(admin + index if admin else 0),
                "--model", config.model,
                "--threads", str(threads_per_worker(config, role=role, cores=cores)),
                *device_flags(config, role=role, index=index),
                *local_prefill_flags(config, role=role),
                *_common_flags(config, settings_file),
            ),
            environment=_secrets(config, role=role),
        )
        for role, count, port, admin in rows
        for index in range(count)
    ]  # fmt: skip


def gateway_spec(
    config: UpConfig,
    *,
    prefill: tuple[ReadyLine, ...],
    decode: tuple[ReadyLine, ...],
    settings_file: Path | None = None,
) -> RoleSpec:
    """Flags of the gateway; with Redis it finds the workers itself."""
    workers: tuple[str, ...] = ()
    if not config.redis_url:
        workers = ("--decode-workers", ",".join(ready.address for ready in decode))
        if prefill:
            workers += ("--prefill-workers", ",".join(ready.address for ready in prefill))
    return RoleSpec(
        role="gateway",
        name="gateway",
        arguments=(
            "--host", "127.0.0.1",
            "--port", str(config.rest_port),
            "--grpc-port", str(config.grpc_port),
            "--admin-port", str(config.gateway_admin_port),
            "--model", config.model,
            *workers,
            *_common_flags(config, settings_file),
        ),
        environment=_secrets(config, role="gateway"),
    )  # fmt: skip


def _common_flags(config: UpConfig, settings_file: Path | None) -> tuple[str, ...]:
    flags: tuple[str, ...] = ("--log-format", _log_format(config))
    if settings_file is not None:
        flags += ("--config", str(settings_file))
    if config.cache_dir is not None:
        flags += ("--cache-dir", str(config.cache_dir))
    return flags


def _secrets(config: UpConfig, *, role: str) -> dict[str, str]:
    """The URL may hold a password."""
    return {f"TANDEM_{role.upper()}__REDIS_URL": config.redis_url} if config.redis_url else {}


def _log_format(config: UpConfig) -> str:
    """A role writes into a pipe, so what `auto` means is decided here."""
    if config.log_format != "auto":
        return config.log_format
    return "text" if config.log_dir is None and sys.stderr.isatty() else "json"


@dataclass(slots=True)
class Cluster:
    """The roles of `tandem up`."""

    config: UpConfig
    on_line: LineSink
    on_phase: PhaseSink
    settings_file: Path | None = None
    """Settings of the roles; each looks for its own file without."""
    roles: list[RoleProcess] = field(default_factory=list)

    async def start(self) -> Endpoints:
        """Starts workers, then the gateway, and waits until it answers ready.

        Raises:
            TandemError: a role did not come up; the others still run until `stop`.
        """
        cores = os.cpu_count() or 1
        self.on_phase(
            f"starting {self.config.prefill} prefill and {self.config.decode} decode of "
            f"{self.config.model}"
        )
        specs = worker_specs(self.config, cores=cores, settings_file=self.settings_file)
        workers = [await self._spawn(spec) for spec in specs]
        lines = await asyncio.gather(*(self._ready(role) for role in workers))
        prefill = tuple(line for line in lines if line.role == "prefill")
        decode = tuple(line for line in lines if line.role == "decode")
        self.on_phase("starting gateway")
        spec = gateway_spec(
            self.config, prefill=prefill, decode=decode, settings_file=self.settings_file
        )
        gateway = await self._spawn(spec)
        endpoints = Endpoints(gateway=await self._ready(gateway), prefill=prefill, decode=decode)
        await self._wait_serving(endpoints.url, gateway)
        self.on_phase("gateway sees the pair")
        return endpoints

    async def wait_death(self) -> RoleProcess:
        """Waits until any role ends."""
        waits = {asyncio.create_task(role.wait_ended()): role for role in self.roles}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        return waits[next(iter(done))]

    async def stop(self) -> None:
        """Drains the gateway, then prefill, then decode; roles of one kind together."""
        for kind in _END_ORDER:
            group = [role for role in self.roles if role.spec.role == kind]
            if any(role.running for role in group):
                self.on_phase(f"stopping {kind}")
            await asyncio.gather(*(role.stop(self.config.drain_timeout_s) for role in group))

    async def _spawn(self, spec: RoleSpec) -> RoleProcess:
        role = await RoleProcess.start(spec, on_line=self.on_line)
        self.roles.append(role)
        return role

    async def _ready(self, role: RoleProcess) -> ReadyLine:
        line = await role.wait_ready(self.config.ready_timeout_s)
        self.on_phase(f"{role.spec.name} ready at {line.address or line.rest}")
        return line

    async def _wait_serving(self, url: str, gateway: RoleProcess) -> None:
        deadline = asyncio.get_running_loop().time() + self.config.ready_timeout_s
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            while asyncio.get_running_loop().time() < deadline:
                if not gateway.running:
                    code = await gateway.wait_ended()
                    raise error_of_exit(gateway.spec.name, code, list(gateway.tail))
                try:
                    if (await client.get(f"{url}/health/ready")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError as error:
                    self.on_line("gateway", f"not reachable yet: {error}")
                await asyncio.sleep(_POLL_S)
        raise DeadlineError(
            f"the gateway at {url} found no ready pair in {self.config.ready_timeout_s:g} s: a "
            "worker may be unreachable "
            "or of another model; GET /health/ready says which"
        )

"""Runs docker-compose.yml as processes of this machine, without Docker.

    python -m tests.support.compose_run [MODEL_FOLDER]         # the CPU services
    python -m tests.support.compose_run --2p2d [MODEL_FOLDER]  # the GPU layout 2P2D, devices cpu
    python -m tests.support.compose_run --load [MODEL_FOLDER]  # the CPU services and profile load

Each service gets the entrypoint and variables of its image (read from the Dockerfile), then the
command, variables and secrets of the Compose file, and nothing of this machine's environment. What
differs is where things are: container paths become folders, host names loopback, ports free ones;
`mapped` is all of it. Services start in Compose's order, wait for the same health checks, and get
SIGTERM in its order of stopping. Images, networks, users, limits and read-only folders need a real
engine.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.compose_project import (
    BASE,
    GPU,
    ROOT,
    Project,
    Service,
    read_project,
    role_of,
    seconds,
    start_order,
)
from tests.support.dockerfiles import Stage, read_stages
from tests.support.redis_server import free_port

DOCUMENTED_PORTS: Mapping[str, Mapping[str, int]] = {
    "gateway": {"PORT": 8000, "GRPC_PORT": 8001, "ADMIN_PORT": 9000},
    "prefill": {"PORT": 8101, "ADMIN_PORT": 9100},
    "decode": {"PORT": 8201, "ADMIN_PORT": 9200},
}
"""Settings of each role and the ports that documents name for them."""

REDIS_PORT = 6379
LOCUST_PORT = 8089
_SERVICE_PORTS = {"redis": (REDIS_PORT,), "load": (LOCUST_PORT,)}
"""Of services that have no role."""
IMAGE_MODEL = "/opt/tandem/models/smollm2"
WEIGHTS = "model.safetensors"
BASE_PATH = "/usr/local/bin:/usr/bin:/bin"
"""PATH of the base images."""
_HEALTH_POLL_S = 0.3


def image_of(service: Service) -> Stage:
    """The stage that a service's image is built from; one without a build is somebody else's."""
    build = service.get("build")
    if build is None:
        return Stage(base=service["image"])
    return read_stages(ROOT / build["dockerfile"])[build["target"]]


@dataclass(slots=True)
class Running:
    """One service as a process."""

    name: str
    service: Service
    image: Stage
    process: "subprocess.Popen[bytes]"
    environ: dict[str, str]
    log: Path
    healthy: bool = False
    exit_code: int | None = None


@dataclass(slots=True)
class ComposeRun:
    """The services of a project, started by `with`."""

    folder: Path
    """Takes volumes, secrets and logs."""
    model: Path
    """Model folder that stands for the embedded one."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Variables for the Compose file."""
    files: Sequence[Path] = (BASE,)
    """Compose files, the later ones over the earlier ones."""
    profiles: Sequence[str] = ()
    say: Callable[[str], None] = lambda _: None
    project: Project = field(init=False)
    ports: dict[tuple[str, int], int] = field(init=False)
    services: dict[str, Running] = field(init=False, default_factory=dict)

    def __enter__(self) -> Self:
        self.project = read_project(*self.files, profiles=self.profiles, environ=self.environ)
        services = self.project["services"]
        documented = [(name, port) for name in services for port in self._ports_of(name)]
        self.ports = {key: free_port() for key in documented}
        try:
            for name in start_order(services):
                self._await_needed(name)
                self._start(name)
            for name in services:
                self.wait_healthy(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for running in self.services.values():
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()

    @property
    def url(self) -> str:
        """Base URL of the gateway."""
        return f"http://127.0.0.1:{self.ports['gateway', DOCUMENTED_PORTS['gateway']['PORT']]}"

    @property
    def page(self) -> str:
        """Base URL of Locust's page, with profile load."""
        return f"http://127.0.0.1:{self.ports['load', LOCUST_PORT]}"

    def wait_healthy(self, name: str) -> None:
        """Runs the service's health check until it passes, for as long as Compose would."""
        running = self.services[name]
        check = running.service["healthcheck"]
        if check.get("disable"):
            return
        limit = time.monotonic() + seconds(check["start_period"])
        while not running.healthy:
            assert running.process.poll() is None, f"{name} ended\n{self.log_of(name)}"
            healthy, text = self._health(running, timeout_s=seconds(check["timeout"]))
            if healthy:
                running.healthy = True
                self.say(f"{name} is healthy: {text[:100]}")
                return
            assert time.monotonic() < limit, f"{name}: {text}\n{self.log_of(name)}"
            time.sleep(_HEALTH_POLL_S)

    def signal_stop(self, name: str) -> None:
        """SIGTERM, as `docker compose stop` sends it."""
        self.services[name].process.send_signal(signal.SIGTERM)

    def wait_stopped(self, name: str) -> int:
        """Exit code; a service that needs more than its grace period would have been killed."""
        running = self.services[name]
        grace = seconds(running.service["stop_grace_period"])
        running.exit_code = running.process.wait(timeout=grace)
        self.say(f"{name} stopped with exit code {running.exit_code}")
        return running.exit_code

    def stop_order(self) -> list[str]:
        """What depends stops before what it depends on."""
        return start_order(self.project["services"])[::-1]

    def log_of(self, name: str) -> str:
        """Output of a service so far."""
        return self.services[name].log.read_text(encoding="utf-8", errors="replace")

    def mapped(self, text: str, *, service: str) -> str:
        """A text of the Compose file or of an image with places of this machine."""
        role = role_of(self.project["services"][service])
        model = self._tokenizer_folder() if role == "gateway" else self.model
        text = text.replace("/opt/tandem/venv/bin", str(Path(sys.executable).parent))
        text = text.replace(IMAGE_MODEL, str(model))
        text = text.replace("/run/secrets", str(self.folder / "secrets" / service))
        text = text.replace("/var/lib/tandem", str(self.folder / "cache"))
        for (name, port), free in self.ports.items():
            text = re.sub(rf"(?<![\w.-]){name}:{port}\b", f"127.0.0.1:{free}", text)
        if service == "load":  # the port of its own page, in its command and in its check
            free = self.ports[service, LOCUST_PORT]
            text = re.sub(rf"(--web-port=|127\.0\.0\.1:){LOCUST_PORT}\b", rf"\g<1>{free}", text)
        return text

    def _start(self, name: str) -> None:
        service = self.project["services"][name]
        image = image_of(service)
        self._write_secrets(name, service)
        environ = {"PATH": "$PATH", **image.env}
        environ["PATH"] = environ["PATH"].replace("$PATH", BASE_PATH)
        environ |= {key: value or "" for key, value in service.get("environment", {}).items()}
        environ = {key: self.mapped(value, service=name) for key, value in environ.items()}
        environ |= self._port_variables(name)
        command = [*(service.get("entrypoint") or image.entrypoint), *service["command"]]
        command = [self.mapped(word, service=name) for word in command]
        if name == "redis":
            command = self._redis_command(command)
        workdir = Path(self.mapped(image.workdir, service=name))
        workdir.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        self.say(f"{name}: {' '.join(command)}")
        program = shutil.which(command[0], path=environ["PATH"])
        assert program is not None, f"{command[0]} is not installed"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, *command[1:]],
                cwd=workdir,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.services[name] = Running(name, service, image, process, environ, log)

    def _await_needed(self, name: str) -> None:
        for needed, how in self.project["services"][name].get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                self.wait_healthy(needed)

    def _health(self, running: Running, *, timeout_s: float) -> tuple[bool, str]:
        """Whether the check passed, and what it said; one that takes too long has failed."""
        kind, *words = running.service["healthcheck"]["test"]
        words = [self.mapped(word, service=running.name) for word in words]
        if kind == "CMD-SHELL":
            client = shutil.which("valkey-cli") or "redis-cli"
            port = self.ports[running.name, REDIS_PORT]
            words = ["sh", "-c", words[0].replace("valkey-cli", f"{client} -p {port}")]
        program = shutil.which(words[0], path=running.environ["PATH"])
        assert program is not None, f"{words[0]} is not installed"
        try:
            result = subprocess.run(
                [program, *words[1:]],
                env=running.environ,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False, f"no answer in {timeout_s} s"
        return result.returncode == 0, result.stdout.strip()

    def _ports_of(self, name: str) -> list[int]:
        role = role_of(self.project["services"][name])
        if role is None:
            return list(_SERVICE_PORTS.get(name, ()))
        return list(DOCUMENTED_PORTS[role].values())

    def _port_variables(self, name: str) -> dict[str, str]:
        role = role_of(self.project["services"][name])
        settings = {} if role is None else DOCUMENTED_PORTS[role]
        return {
            f"TANDEM_{str(role).upper()}__{setting}": str(self.ports[name, port])
            for setting, port in settings.items()
        }

    def _redis_command(self, command: list[str]) -> list[str]:
        # Debian 12 has no Valkey, but the Redis 7.0 that it began from.
        program = shutil.which(command[0]) or "redis-server"
        port = self.ports["redis", REDIS_PORT]
        placed = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(self.folder)]
        return [program, *command[1:], *placed]

    def _write_secrets(self, name: str, service: Service) -> None:
        folder = self.folder / "secrets" / name
        folder.mkdir(parents=True)
        for secret in service.get("secrets", []):
            source = Path(self.project["secrets"][secret["source"]]["file"])
            text = self.mapped(source.read_text(encoding="utf-8"), service=name)
            (folder / secret["source"]).write_text(text, encoding="utf-8")

    def _tokenizer_folder(self) -> Path:
        """The model as the gateway's image has it: without weights."""
        folder = self.folder / "tokenizer" / self.model.name
        if not folder.is_dir():
            folder.mkdir(parents=True)
            for path in self.model.iterdir():
                if path.name != WEIGHTS:
                    (folder / path.name).symlink_to(path)
        return folder


def pair_of_pairs(folder: Path, model: Path, *, say: Callable[[str], None]) -> ComposeRun:
    """The GPU layout 2P2D on this machine's CPU."""
    workers = [f"{role}_{number}" for role in ("PREFILL", "DECODE") for number in (1, 2)]
    environ = {f"{worker}_DEVICE": "cpu" for worker in workers}
    environ |= {"DTYPE": "float32", "KV_BYTES": str(256 << 20), "SLAB_BYTES": str(256 << 20)}
    return ComposeRun(folder, model, environ, (BASE, GPU), ("2p", "2d"), say)


def under_load(folder: Path, model: Path, *, say: Callable[[str], None]) -> ComposeRun:
    """The CPU services and a short run of profile load."""
    environ = {"LOAD_SECONDS": "10", "LOAD_RATE": "1"}
    return ComposeRun(folder, model, environ, profiles=("load",), say=say)


def await_load(run: ComposeRun, *, timeout_s: float = 120.0) -> None:
    """Waits until Locust's page says that its run is over."""
    import httpx

    limit = time.monotonic() + timeout_s
    while httpx.get(f"{run.page}/stats/requests", timeout=30).json()["state"] != "stopped":
        assert time.monotonic() < limit, run.log_of("load")
        time.sleep(_HEALTH_POLL_S)


LAYOUTS: Mapping[str, Callable[..., ComposeRun]] = {"--2p2d": pair_of_pairs, "--load": under_load}


def main(arguments: list[str]) -> None:
    """Starts the services, asks one question, waits for a load's end, stops them in order."""
    import httpx

    from shared.model.catalog import resolve

    names = [argument for argument in arguments if argument not in LAYOUTS]
    chosen = [LAYOUTS[argument] for argument in arguments if argument in LAYOUTS]
    model = Path(names[0]) if names else resolve("smollm2")
    question = {
        "model": model.name,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    make = chosen[0] if chosen else ComposeRun
    with (
        tempfile.TemporaryDirectory(prefix="tandem-compose-") as folder,
        make(Path(folder), model, say=lambda text: print(text, flush=True)) as run,
    ):
        answer = httpx.post(f"{run.url}/v1/chat/completions", json=question, timeout=120)
        print(answer.status_code, answer.json()["choices"][0]["message"]["content"])
        if "load" in run.services:
            await_load(run)
        for name in run.stop_order():
            run.signal_stop(name)
            run.wait_stopped(name)
        if "load" in run.services:
            print(run.log_of("load"))


if __name__ == "__main__":
    main(sys.argv[1:])

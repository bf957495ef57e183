"""Settings of `tandem up`: table [up] of tandem.toml, variables TANDEM_UP__<FIELD>, flags."""

from dataclasses import dataclass
from pathlib import Path

from shared.config.bounds import check_numbers
from shared.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpConfig:
    """Starts every role on this machine, on loopback, and takes them down in order."""

    prefill: int = 1
    """Prefill workers; with 0 the decode workers read all prompts themselves."""
    decode: int = 1
    """Decode workers."""
    local_prefill_tokens: int = 0
    """Longest prompt, in tokens, that decode workers read themselves when it is short or no prefill
    worker takes it; 0: what [decode] says, and any prompt where there are no prefill workers."""
    model: str = "smollm2"
    """Catalog name, folder, hub id or GGUF file, the same for every role."""
    prefill_gpus: tuple[int, ...] = ()
    """GPUs of the prefill workers by CUDA's number, as 0 or 0,1: workers take them in turn, and
    again from the first; empty: the device that [prefill] names."""
    decode_gpus: tuple[int, ...] = ()
    """The same of the decode workers; with one GPU for each role a pair needs two."""
    cache_dir: Path | None = None
    """Model cache; none means TANDEM_CACHE_DIR or ~/.cache/tandem."""
    redis_url: str = ""
    """Redis for discovery, as redis://host:port/0; empty tells the gateway the workers directly."""
    rest_port: int = 8000
    """REST port of the gateway; 0 picks a free one."""
    grpc_port: int = 8001
    """gRPC port of the gateway; 0 picks a free one."""
    gateway_admin_port: int = 9000
    """Metrics and health port of the gateway; 0 picks a free one."""
    prefill_port: int = 8101
    """gRPC port of the first prefill worker, counted up for the others; 0 picks free ones."""
    decode_port: int = 8201
    """gRPC port of the first decode worker, counted up for the others; 0 picks free ones."""
    prefill_admin_port: int = 9100
    """Metrics port of the first prefill worker, counted up; 0 picks free ones."""
    decode_admin_port: int = 9200
    """Metrics port of the first decode worker, counted up; 0 picks free ones."""
    prefill_threads: int = 0
    """CPU threads of each prefill worker; 0 divides all cores: a prompt is compute-bound."""
    decode_threads: int = 0
    """CPU threads of each decode worker; 0 divides half of the cores: a step is memory-bound."""
    log_dir: Path | None = None
    """Folder for one log file a role; none forwards logs to standard error."""
    log_format: str = "auto"
    """Log lines of the roles: json, text, or auto (text when standard error is a terminal)."""
    ready_timeout_s: float = 300.0
    """Seconds that a role may take to become ready."""
    drain_timeout_s: float = 30.0
    """Seconds that a role may take to finish its requests when asked to stop."""

    def __post_init__(self) -> None:
        check_numbers(self, role="up")
        if self.prefill < 0 or self.decode < 1:
            raise ConfigError(
                f"prefill {self.prefill} and decode {self.decode} cannot serve: decode needs at "
                "least one worker, which may read prompts itself; give --decode 1 or more, and "
                "--prefill 0 or more"
            )
        if min((*self.prefill_gpus, *self.decode_gpus), default=0) < 0:
            raise ConfigError("prefill_gpus and decode_gpus: give numbers from 0, as 0,1")
        if self.local_prefill_tokens < 0:
            raise ConfigError(
                f"up setting local_prefill_tokens is {self.local_prefill_tokens}; give 0 or more"
            )
        if self.log_format not in {"auto", "json", "text"}:
            raise ConfigError(
                f"up setting log_format cannot be {self.log_format!r}: choose auto, json or text"
            )
        if self.ready_timeout_s <= 0 or self.drain_timeout_s <= 0:
            raise ConfigError("ready_timeout_s and drain_timeout_s must be above 0 seconds")


FREE_PORTS = UpConfig(
    rest_port=0,
    grpc_port=0,
    gateway_admin_port=0,
    prefill_port=0,
    decode_port=0,
    prefill_admin_port=0,
    decode_admin_port=0,
)
"""Defaults with every port a free one; `dataclasses.replace` sets the rest."""

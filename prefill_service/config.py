"""Settings of the prefill service."""

from dataclasses import dataclass
from pathlib import Path

from shared.config.bounds import check_numbers
from shared.errors import ConfigError
from shared.types.memory_kind import check_memory

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillConfig:
    """Settings of one prefill worker: reads prompts, prunes them with CLAA, pushes their KV."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8101
    """gRPC port; 0 picks a free one."""
    admin_port: int = 9100
    """Port of metrics and health pages; 0 picks a free one."""
    admin_host: str = "127.0.0.1"
    """Address to bind the metrics and health pages to, which ask for no key."""
    model: str = "smollm2"
    """Model to serve: a catalog name, a folder, a hub id or a GGUF file."""
    model_name: str = ""
    """Served name; empty takes the checkpoint's."""
    cache_dir: Path | None = None
    """Folder of downloaded models; the user's cache when left out."""
    dtype: str = "float32"
    """Element type of weights and KV: float32, bfloat16 or float16."""
    device: str = "cpu"
    """Device to run on, for example cpu or cuda:0."""
    threads: int = 0
    """Compute threads on a CPU; 0 leaves the library's choice."""
    profile: str = ""
    """Model profile, a name or a TOML file; empty takes the one that belongs to the model."""
    worker_id: str = ""
    """Name of this worker; empty makes one up."""
    redis_url: str = ""
    """Redis for discovery, for example redis://127.0.0.1:6379/0; empty publishes nothing."""
    advertise_address: str = ""
    """host:port that peers connect to; empty takes the bound one."""
    tls_cert: Path | None = None
    """PEM certificate of this worker, reloaded when it changes; all three of tls, or none for plain
    text."""
    tls_key: Path | None = None
    """PEM key of tls_cert."""
    tls_ca: Path | None = None
    """PEM authorities: who connects must show a certificate of one of them."""
    tls_name: str = ""
    """Name that all decode workers' certificates carry; empty expects the host of each address."""
    worker_networks: tuple[str, ...] = ()
    """Networks that decode workers may be in, as 10.0.0.0/8 separated by commas; empty allows all
    but link-local, cloud metadata, multicast and reserved ones."""
    log_format: str = "auto"
    """Log lines: json, text, or auto (text on a terminal)."""
    otlp_endpoint: str = ""
    """OTLP/gRPC collector of traces, like http://localhost:4317 (extra otel); empty sends none."""
    otlp_sample_ratio: float = 1.0
    """Share of the requests that are traced when their caller does not say, 0 to 1."""
    max_model_len: int = 0
    """Longest context in tokens; 0 takes the model's."""
    chunk_tokens: int = 1024
    """Prompt tokens that run through a layer at once on a CPU."""
    device_chunk_tokens: int = 16384
    """The same on a CUDA device, where a block's activations take 90 KB a token at the 8B shape."""
    pack_tokens: int = 0
    """Most prompt tokens that short prompts which wait together fill one pass with on a CPU, whose
    cores one prompt keeps busy; a longer prompt goes alone; 0 computes one prompt at a time."""
    device_pack_tokens: int = 4096
    """The same on a CUDA device, which a prompt of some hundred tokens leaves mostly idle."""
    pack_prompts: int = 32
    """Most prompts of one pass."""
    queue_tokens: int = 65536
    """Prompt tokens that may wait; more are turned away with queue_full."""
    transports: tuple[str, ...] = ("grpc",)
    """Transports this worker may use, best first: nixl (extra nixl) and grpc."""
    require_transport: str = ""
    """Use only this transport: no start without it, no handoff that it cannot carry; empty: all."""
    kv_memory: str = "auto"
    """Memory that KV is sent from: device (the GPU's, which nixl reads directly), host, or auto
    (device where the model is on CUDA and nixl registers a little of its memory on trial). Alike
    on both ends of a pair."""
    faults: tuple[str, ...] = ()
    """Exercise only: faults made on purpose in transfers of KV, as kill@ack=0.01, seed=7. Kinds are
    drop, delay:SECONDS, duplicate, corrupt, truncate and kill; moments are hello, grant, first,
    middle and last chunk, seal and ack; then the share of the transfers. Health shows them."""
    reserve_wait_s: float = 10.0
    """Longest seconds a prompt asks busy decode workers for room before it is turned away."""
    rpc_timeout_s: float = 10.0
    """Longest seconds of one call to a decode worker."""
    delivery_tries: int = 3
    """Deliveries of one KV cache before its handoff fails."""
    buffer_bytes: int = 2048 * MIB
    """Bytes of KV on its way or held for a resend, in host memory, touched as they are needed, or,
    taken at the start, in the GPU's; a prompt waits for room in it."""
    sealed_bytes: int = 1024 * MIB
    """Bytes of it that delivered KV may hold for a resend; the oldest is dropped first."""
    sealed_lease_s: float = 30.0
    """Seconds that delivered KV is held for a resend, unless renewed."""
    stall_s: float = 10.0
    """Seconds without progress, with work at hand, after which the worker is not ready."""
    stall_exit_s: float = 120.0
    """Seconds without progress after which the process ends itself; 0 never does."""
    drain_s: float = 60.0
    """Longest seconds that a drain waits for prompts that are queued or running."""

    @property
    def faults_text(self) -> str:
        """The faults in one line, for health pages and logs; empty when there are none."""
        return ", ".join(entry.strip() for entry in self.faults)

    def __post_init__(self) -> None:
        check_numbers(self, role="prefill")
        self._require(("chunk_tokens", "device_chunk_tokens", "queue_tokens"), low=1)
        self._require(("delivery_tries", "buffer_bytes", "pack_prompts"), low=1)
        self._require(("pack_tokens", "device_pack_tokens"), low=0)
        self._require(("port", "admin_port", "threads", "max_model_len", "sealed_bytes"), low=0)
        self._require(("stall_exit_s", "drain_s"), low=0)
        for name in ("reserve_wait_s", "rpc_timeout_s", "sealed_lease_s", "stall_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"prefill setting {name} must be above 0 seconds; raise it")
        check_memory("prefill", self.kv_memory)
        if not self.transports:
            raise ConfigError("prefill setting transports is empty; name at least one, like grpc")
        if self.log_format not in {"auto", "json", "text"}:
            raise ConfigError(
                f"prefill setting log_format cannot be {self.log_format!r}: "
                "choose auto, json or text"
            )

    def _require(self, names: tuple[str, ...], *, low: int) -> None:
        for name in names:
            if not getattr(self, name) >= low:
                raise ConfigError(f"prefill setting {name} must be at least {low}; raise it")

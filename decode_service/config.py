"""Settings of the decode service."""

from dataclasses import dataclass
from pathlib import Path

from shared.config.bounds import check_numbers
from shared.errors import ConfigError
from shared.types.memory_kind import check_memory

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Settings of one decode worker: generates from handed-over KV caches with DELTA."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8201
    """gRPC port; 0 picks a free one."""
    admin_port: int = 9200
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
    """Element type of weights and KV cache: float32, bfloat16 or float16."""
    device: str = "cpu"
    """Device to run on, for example cpu or cuda:0."""
    attention: str = "auto"
    """How steps are computed: auto (triton where it can run), triton, flashinfer (as triton, but
    dense layers by that library, extra flashinfer; never by auto), or torch, row by row."""
    products: str = "auto"
    """What multiplies a step's rows by the weights, where triton or flashinfer computes steps: auto
    (measured at start), library, or triton (kernels of ours for up to 64 rows)."""
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
    log_format: str = "auto"
    """Log lines: json, text, or auto (text on a terminal)."""
    otlp_endpoint: str = ""
    """OTLP/gRPC collector of traces, like http://localhost:4317 (extra otel); empty sends none."""
    otlp_sample_ratio: float = 1.0
    """Share of the requests that are traced when their caller does not say, 0 to 1."""
    kv_bytes: int = 1024 * MIB
    """Bytes of the KV cache, shared out as pages of both length groups by rest_share."""
    pages_front: int = 0
    """Pages of the whole layers, instead of a share of kv_bytes; 0 takes the share."""
    pages_rest: int = 0
    """Pages of the pruned layers, instead of a share of kv_bytes; 0 takes the share."""
    rest_share: float = 1.0
    """Pages of a pruned layer for each page of a whole one. 1 lets any request decode unpruned; a
    worker of pruned prompts serves more of them with (kept + answer) / (prompt + answer) tokens, up
    to three times as many 32k prompts at 20 % with 0.224, and fewer unpruned ones."""
    slab_bytes: int = 512 * MIB
    """Bytes of the landing slab, in host memory or the GPU's; the longest unpruned prompt must
    fit."""
    max_batch: int = 32
    """Rows of one decode step; further rows wait."""
    max_model_len: int = 0
    """Longest context in tokens; 0 takes the model's."""
    local_prefill_tokens: int = 0
    """Longest prompt, in tokens, that this worker may read itself, by a prefill engine over the
    same weights with the settings of [prefill]; 0: it has none. The gateway decides when."""
    lease_s: float = 30.0
    """Seconds a granted slab outlives its last sign of the writer."""
    adopt_lease_s: float = 30.0
    """Seconds an adopted KV cache waits for its Decode call."""
    commit_wait_s: float = 5.0
    """Seconds a Decode call waits for the commit, and a commit for the end of its push stream."""
    quarantine_s: float = 30.0
    """Longest seconds a given-up slab waits for its writer to go away."""
    remember_s: float = 120.0
    """Seconds a finished handoff is remembered, so that late messages are recognised."""
    transports: tuple[str, ...] = ("grpc",)
    """Transports this worker takes, best first: nixl (extra nixl) and grpc."""
    require_transport: str = ""
    """Use only this transport and do not start without it; empty takes all that work."""
    kv_memory: str = "auto"
    """Memory that KV lands in: device (the GPU's, which nixl writes to directly), host, or auto
    (device where the model is on CUDA and nixl registers a little of its memory on trial). Alike
    on both ends of a pair."""
    stream_queue_tokens: int = 256
    """Unread tokens after which a row rests until its reader catches up."""
    stall_s: float = 10.0
    """Seconds without progress, with work at hand, after which the worker is not ready."""
    stall_exit_s: float = 120.0
    """Seconds without progress after which the process ends itself; 0 never does."""
    drain_s: float = 60.0
    """Longest seconds that a drain waits for running answers."""
    drift_every: int = 0
    """Steps of an answer between two drift checks, which weigh what its sparse layers read against
    full attention; 0 never checks."""
    drift_alarm: float = 0.8
    """Share of the attention mass below which a drift check warns: the mean over the sparse layers
    and their heads; 0 never warns."""
    poison: bool = False
    """Fill freed pages with NaN, to find reads of stale memory."""

    def __post_init__(self) -> None:
        check_numbers(self, role="decode")
        for names, lowest, unit in _BOUNDS:
            for name in names:
                value = getattr(self, name)
                if not value >= lowest:
                    raise ConfigError(
                        f"decode setting {name} is {value}, but must be at least {lowest} {unit}"
                    )
        check_memory("decode", self.kv_memory)
        if self.products not in PRODUCTS:
            raise ConfigError(
                f"decode setting products cannot be {self.products!r}: choose {', '.join(PRODUCTS)}"
            )
        if self.rest_share > 1:
            raise ConfigError(
                f"decode setting rest_share is {self.rest_share}, but pruned layers never hold "
                "more than whole ones: give a number above 0 and at most 1"
            )
        if not self.transports:
            raise ConfigError("decode setting transports is empty; name at least one, like grpc")
        if self.drift_alarm > 1:
            raise ConfigError(
                f"decode setting drift_alarm is {self.drift_alarm}, but it is a share of the "
                "attention mass: give a number from 0 to 1"
            )
        if self.log_format not in {"auto", "json", "text"}:
            raise ConfigError(
                f"decode setting log_format cannot be {self.log_format!r}: "
                "choose auto, json or text"
            )


PRODUCTS = ("auto", "library", "triton")
"""What may multiply a step's rows by the weights; `engine/batched/product_choice.py` knows them."""

_BOUNDS: tuple[tuple[tuple[str, ...], float, str], ...] = (
    (("kv_bytes", "slab_bytes"), 1, "bytes"),
    (("rest_share",), 0.001, ""),
    (("max_batch",), 1, "rows"),
    (("stream_queue_tokens",), 1, "tokens"),
    (("port", "admin_port", "threads", "pages_front", "pages_rest", "max_model_len"), 0, ""),
    (("local_prefill_tokens",), 0, "tokens"),
    (("drift_every",), 0, "steps"),
    (("drift_alarm",), 0, ""),
    (("lease_s", "adopt_lease_s", "commit_wait_s", "quarantine_s", "remember_s"), 0.01, "seconds"),
    (("stall_s", "stall_exit_s", "drain_s"), 0, "seconds"),
)

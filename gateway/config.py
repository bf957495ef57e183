"""Settings of the gateway."""

from dataclasses import dataclass
from pathlib import Path

from gateway.tools.registry import check_setting
from shared.config.bounds import check_numbers, check_range
from shared.errors import ConfigError
from shared.wire.sampling import MAX_BRANCHES

MAX_RETRY_BUDGET = 1000
"""Retries for each request; more bounds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Fronts the pair: OpenAI-compatible REST, gRPC, routing and admission."""

    host: str = "127.0.0.1"
    """Address to bind the REST and gRPC servers to."""
    port: int = 8000
    """REST port; 0 picks a free one."""
    grpc_port: int = 8001
    """gRPC port; 0 picks a free one."""
    admin_port: int = 9000
    """Port of metrics and health for operators; 0 picks a free one."""
    admin_host: str = "127.0.0.1"
    """Address to bind the admin server to, which asks for no key."""
    api_keys: Path | None = None
    """File of API keys, written by `tandem key`; changes count at once. None asks for no key."""
    tls_cert: Path | None = None
    """PEM certificate of the REST and gRPC ports, reloaded when it changes; None is plain text."""
    tls_key: Path | None = None
    """PEM key of tls_cert."""
    worker_tls_cert: Path | None = None
    """PEM certificate that workers are shown; all three of worker_tls, or none for plain text."""
    worker_tls_key: Path | None = None
    """PEM key of worker_tls_cert."""
    worker_tls_ca: Path | None = None
    """PEM authorities that workers' certificates must come from."""
    worker_tls_name: str = ""
    """Name that all workers' certificates carry; empty expects the host of each address."""
    worker_networks: tuple[str, ...] = ()
    """Networks that workers may be in, as 10.0.0.0/8 separated by commas; empty allows all but
    link-local, cloud metadata, multicast and reserved ones."""
    model: str = "smollm2"
    """Model whose tokenizer and chat template are used: a pulled model's name or a folder."""
    model_dir: str = ""
    """Folder with the tokenizer; empty takes that of `model` in the cache."""
    model_name: str = ""
    """Name that clients use; empty takes the workers' name."""
    cache_dir: Path | None = None
    """Cache of pulled models; TANDEM_CACHE_DIR or ~/.cache/tandem when unset."""
    prefill_workers: tuple[str, ...] = ()
    """Prefill workers, host:port separated by commas (static discovery)."""
    decode_workers: tuple[str, ...] = ()
    """Decode workers, host:port separated by commas (static discovery)."""
    redis_url: str = ""
    """Redis for discovery, for example redis://localhost:6379/0; empty uses the two lists."""
    worker_id: str = ""
    """Name of this gateway in logs; empty makes one."""
    balancer: str = "least_loaded"
    """How workers are chosen: least_loaded, power_of_two or round_robin."""
    link_band_tokens: int = 4_096
    """Tokens of load that a pair of workers may have above the balancer's choice and be preferred
    to it for its faster link (NVLink, then the same machine); 0 does not look at links."""
    max_body_bytes: int = 8 * 1024 * 1024
    """Largest request body, in bytes; more is 413."""
    max_bodies_bytes: int = 256 * 1024 * 1024
    """Request bodies held at once, from their first byte to the end of their answer, in bytes; more
    is 429."""
    queue_tokens: int = 131_072
    """Prompt tokens that may wait for their prefill to start; more is 429. One prompt a key always
    may, however long it is."""
    queue_requests: int = 1024
    """Requests that may wait for their prefill to start; more is 429."""
    queue_wait_s: float = 60.0
    """Longest wait for a prefill worker, in seconds; who would wait longer gets 429 at once."""
    worker_prompt_tokens: int = 16_384
    """Prompt tokens sent to one prefill worker before others wait in the gateway, where keys take
    fair turns; two prompts are always sent, so that no worker is idle."""
    short_prompt_tokens: int = 512
    """Prompts up to this many tokens are read by the decode worker that answers them, where one has
    local_prefill_tokens; others only when no prefill worker takes them. 0: no prompt is short."""
    key_requests_per_minute: int = 0
    """Requests that a key without a limit of its own may send in a minute; 0 is no limit. Without
    keys all clients are one."""
    key_tokens_per_minute: int = 0
    """Prompt and answer tokens of such a key in a minute; 0 is no limit."""
    max_choices: int = 16
    """Answers to one prompt that a request may ask for (n), at most 128; more is 400."""
    request_timeout_s: float = 600.0
    """Longest life of a request, in seconds."""
    keepalive_s: float = 10.0
    """Silence after which a stream gets a comment line, in seconds."""
    poll_interval_s: float = 1.0
    """Pause between two looks at a static worker, in seconds."""
    breaker_failures: int = 3
    """Consecutive lost connections and internal errors that take a worker out of rotation."""
    breaker_cooldown_s: float = 5.0
    """How long it stays out before one trial, in seconds; doubles up to a minute."""
    max_retries: int = 2
    """Attempts after the first one when a worker fails before its answer began."""
    retry_budget: float = 0.1
    """Share of the last ten seconds' requests that may be tried again or replayed. For all rows of
    a decode worker (its max_batch) to be replayed when it dies: rows divided by the requests of ten
    seconds, as 1.6 for 32 rows at 2 requests a second."""
    retry_floor: int = 10
    """Retries and replays in ten seconds that are allowed however few requests there were."""
    replay_answers: bool = False
    """An answer whose decode worker dies after tokens were sent goes on at another pair, once, if
    its request allows it (`tandem.replay`): prompt and answer so far are read again, and what
    follows may differ where a prompt is pruned or pages are skipped. All workers must know it."""
    drain_timeout_s: float = 30.0
    """Wait for running requests at shutdown, in seconds."""
    tool_parser: str = "auto"
    """How the model writes tool calls: hermes (Hermes, Qwen), llama3_json, mistral, none, or auto,
    which asks its chat template. Without a known format, tools are answered with 400."""
    strict_params: bool = False
    """Refuse unknown request fields with 400 instead of naming them in a header."""
    page: bool = True
    """Serve the page at / (playground, live state, traces); the API is the same without it."""
    reflection: bool = True
    """Serve gRPC reflection."""
    log_format: str = "auto"
    """auto, json or text."""
    otlp_endpoint: str = ""
    """OTLP/gRPC collector of traces and GenAI metrics, like http://localhost:4317 (extra otel)."""
    otlp_sample_ratio: float = 1.0
    """Share of the requests that are traced when their caller does not say, 0 to 1."""
    debug_requests: int = 256
    """Finished requests that /debug/requests on the admin port remembers; 0 keeps none."""
    debug_bytes: int = 16 * 1024 * 1024
    """Bytes that they take together at most."""
    debug_prompts: bool = False
    """Keep the prompts of those requests as well, as text, for whoever reaches the admin port."""
    slo_ttft_s: float = 3.0
    """Time to first token that tandem_slo_met_total counts as kept, in seconds."""
    slo_tpot_s: float = 0.08
    """Mean time per later token that tandem_slo_met_total counts as kept, in seconds."""

    def __post_init__(self) -> None:
        check_numbers(self, role="gateway")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value <= 0:
                raise ConfigError(
                    f"{name} is {value}, but nothing works without it; give a value above 0"
                )
        if self.max_bodies_bytes < self.max_body_bytes:
            raise ConfigError(
                f"max_bodies_bytes is {self.max_bodies_bytes}, below max_body_bytes of "
                f"{self.max_body_bytes}: a body that is allowed would never fit; raise it"
            )
        check_setting(self.tool_parser)
        if not 1 <= self.max_choices <= MAX_BRANCHES:
            raise ConfigError(f"max_choices is {self.max_choices}; give 1 to {MAX_BRANCHES}")
        check_range(self, ("retry_budget",), role="gateway", low=0, high=MAX_RETRY_BUDGET)
        check_range(self, _NOT_NEGATIVE, role="gateway", low=0)


_POSITIVE = (
    "max_body_bytes",
    "queue_tokens",
    "queue_requests",
    "queue_wait_s",
    "worker_prompt_tokens",
    "request_timeout_s",
    "keepalive_s",
    "poll_interval_s",
    "breaker_failures",
    "breaker_cooldown_s",
    "debug_bytes",
    "slo_ttft_s",
    "slo_tpot_s",
)

_NOT_NEGATIVE = (
    "max_retries",
    "retry_floor",
    "link_band_tokens",
    "short_prompt_tokens",
    "key_requests_per_minute",
    "key_tokens_per_minute",
    "drain_timeout_s",
    "debug_requests",
)

"""What was measured of one model on one kind of device: the times that a simulation runs on."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shared.errors import ConfigError

FORMAT = 1
"""Version of the file's form."""

POLICIES = ("dense", "delta")
"""What a decode step may have been measured with."""

FULL = 1.0
"""The keep rate that prunes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What decides the size of a KV cache."""

    name: str
    """Model that was measured."""
    num_layers: int
    """Decoder layers N."""
    whole_layers: int
    """First layers m, whose KV is never pruned."""
    token_bytes: int
    """Bytes of one KV slot of one layer, keys and values."""
    max_model_len: int
    """Longest context in tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRule:
    """How many tokens of a prompt are kept."""

    keep_rate: float
    """The profile's own rate."""
    floor_tokens: int
    """No prompt keeps fewer."""
    bypass_below: int
    """Prompts with fewer tokens are not pruned."""

    def kept(self, prompt_tokens: int, keep_rate: float) -> int:
        """Tokens that go past the pruning layer."""
        if keep_rate >= FULL or prompt_tokens < self.bypass_below:
            return prompt_tokens
        return min(prompt_tokens, max(int(prompt_tokens * keep_rate), self.floor_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPoint:
    """One prompt's prefill."""

    tokens: int
    """Prompt tokens."""
    keep_rate: float
    """1: nothing is pruned."""
    seconds: float
    """Compute time."""
    ready: tuple[float, ...]
    """Shares of `seconds` after which equal parts of the KV bytes are final, ascending: of four
    numbers the first is when a quarter of the bytes may leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """One decode step."""

    policy: str
    """`dense` or `delta`."""
    batch: int
    """Rows."""
    context: int
    """KV slots of a row in each layer."""
    seconds: float
    """Time of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPoint:
    """One KV cache on its way to another process."""

    nbytes: int
    """Payload."""
    seconds: float
    """Greeting to the last acknowledgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What a request waits for beside compute and bytes."""

    first_token_s: float
    """Of the way from the client to prefill and of the first token back."""
    handoff_s: float
    """Between the last byte of KV and its first decode step: commit, intake, the Decode call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """How much longer a role takes while the other one computes on the same host."""

    prefill: float = 1.0
    """Times the prompt's own time, while decode steps run."""
    decode: float = 1.0
    """Times a step's own time, while a prompt is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What a decode worker has."""

    max_batch: int
    """Rows of a step."""
    pages_front: int
    """KV pages of each whole layer."""
    pages_rest: int
    """KV pages of each other layer."""
    slab_bytes: int
    """Bytes of the landing slab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredProfile:
    """The file of `tandem plan measure`.

    Raises:
        ConfigError: values that contradict each other or say too little.
    """

    format: int
    """Version of this form."""
    model: ModelShape
    """Shape of the KV cache."""
    pruning: KeepRule
    """What CLAA keeps."""
    prefill: tuple[PrefillPoint, ...]
    """Of each keep rate the same lengths, two or more; rate 1 among them."""
    decode: tuple[DecodePoint, ...]
    """Of each policy every batch with every context; `dense` among them."""
    transport: str
    """How KV was moved."""
    transfer: tuple[TransferPoint, ...]
    """Two sizes or more."""
    overheads: Overheads
    """What else takes time."""
    limits: WorkerLimits
    """What the decode workers had."""
    contention: Contention = field(default_factory=Contention)
    """Of a pair on one host; workers with devices and hosts of their own have none."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Command, commit and hardware; not read."""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise _bad("format", f"is {self.format}, this version reads {FORMAT}")
        self._check_model()
        self._check_prefill()
        self._check_decode()
        self._check_transfer()
        self._check_limits()

    @property
    def keep_rates(self) -> tuple[float, ...]:
        """Measured keep rates, ascending."""
        return tuple(sorted({point.keep_rate for point in self.prefill}))

    @property
    def policies(self) -> tuple[str, ...]:
        """Measured policies."""
        return tuple(name for name in POLICIES if any(p.policy == name for p in self.decode))

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def _check_model(self) -> None:
        model, rule = self.model, self.pruning
        for name in ("num_layers", "token_bytes", "max_model_len"):
            if getattr(model, name) < 1:
                raise _bad(f"model.{name}", "must be at least 1")
        if not 0 <= model.whole_layers <= model.num_layers:
            raise _bad("model.whole_layers", f"must be 0 to {model.num_layers}")
        if not 0 < rule.keep_rate <= FULL:
            raise _bad("pruning.keep_rate", "must be above 0 and at most 1")
        if min(rule.floor_tokens, rule.bypass_below) < 0:
            raise _bad("pruning", "counts must not be negative")

    def _check_prefill(self) -> None:
        for index, point in enumerate(self.prefill):
            place = f"prefill[{index}]"
            _positive(place, tokens=point.tokens, seconds=point.seconds)
            if not 0 < point.keep_rate <= FULL:
                raise _bad(f"{place}.keep_rate", "must be above 0 and at most 1")
            rising = list(point.ready) == sorted(point.ready)
            if not point.ready or not rising or not 0 <= point.ready[0] <= point.ready[-1] <= 1:
                raise _bad(f"{place}.ready", "must be ascending shares of 0 to 1, one or more")
        lengths = {
            rate: sorted(p.tokens for p in self.prefill if p.keep_rate == rate)
            for rate in {p.keep_rate for p in self.prefill}
        }
        if FULL not in lengths:
            raise _bad("prefill", "has no point of keep_rate 1; measure unpruned prefill too")
        if any(found != lengths[FULL] for found in lengths.values()):
            raise _bad("prefill", "has other lengths for some keep rates; measure the same for all")
        _distinct("prefill", lengths[FULL], least=2, what="lengths")

    def _check_decode(self) -> None:
        for index, point in enumerate(self.decode):
            place = f"decode[{index}]"
            if point.policy not in POLICIES:
                raise _bad(f"{place}.policy", f"must be one of {', '.join(POLICIES)}")
            _positive(place, batch=point.batch, context=point.context, seconds=point.seconds)
        if "dense" not in self.policies:
            raise _bad("decode", "has no point of policy dense; measure dense steps too")
        for policy in self.policies:
            own = [(p.batch, p.context) for p in self.decode if p.policy == policy]
            batches, contexts = {b for b, _ in own}, {c for _, c in own}
            whole = {(b, c) for b in batches for c in contexts}
            if len(own) != len(whole) or set(own) != whole:
                raise _bad("decode", f"of policy {policy} lacks or repeats a batch with a context")
            if 1 not in batches:
                raise _bad("decode", f"of policy {policy} has no batch of 1; measure it too")
            if len(contexts) < 2:  # noqa: PLR2004  a slope takes two points
                raise _bad("decode", f"of policy {policy} has fewer than 2 contexts")
            if max(batches) < self.limits.max_batch:
                raise _bad(
                    "decode",
                    f"of policy {policy} was measured up to batch {max(batches)}, below "
                    f"limits.max_batch {self.limits.max_batch}; measure larger batches or lower it",
                )

    def _check_transfer(self) -> None:
        for index, point in enumerate(self.transfer):
            _positive(f"transfer[{index}]", nbytes=point.nbytes, seconds=point.seconds)
        _distinct("transfer", [point.nbytes for point in self.transfer], least=2, what="sizes")
        if min(self.overheads.first_token_s, self.overheads.handoff_s) < 0:
            raise _bad("overheads", "must not be negative")

    def _check_limits(self) -> None:
        limits = self.limits
        if min(self.contention.prefill, self.contention.decode) < 1:
            raise _bad("contention", "must be at least 1: nobody is faster for company")
        _positive(
            "limits",
            max_batch=limits.max_batch,
            pages_front=limits.pages_front,
            pages_rest=limits.pages_rest,
            slab_bytes=limits.slab_bytes,
        )


def _positive(place: str, **values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise _bad(f"{place}.{name}", f"is {value}, but must be above 0")


def _distinct(place: str, values: Sequence[int], *, least: int, what: str) -> None:
    if len(set(values)) != len(values) or len(values) < least:
        raise _bad(place, f"must have {least} or more different {what}, each once")


def _bad(place: str, why: str) -> ConfigError:
    return ConfigError(f"measured profile: {place} {why}; mend it or run `tandem plan measure`")

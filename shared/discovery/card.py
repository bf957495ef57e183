"""The capability card: what a worker says of itself to those that may send it work."""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from itertools import islice
from typing import Any

from shared.errors import ConfigError
from shared.types.model_identity import ModelIdentity
from shared.types.pair_state import MAX_PAIR_STATES, PairState
from shared.types.topology import Topology, place_names, place_text
from shared.types.worker_info import WorkerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCard:
    """One worker, as discovery knows it."""

    worker_id: str
    """Unique among live workers."""
    role: str
    """prefill or decode."""
    address: str
    """host:port of its gRPC server, as others reach it."""
    incarnation: str
    """Fresh for every process."""
    model: ModelIdentity
    """What it serves."""
    max_model_len: int
    """Longest context, in tokens."""
    draining: bool = False
    """True: no new work."""
    queued_tokens: int = 0
    """Prompt tokens waiting."""
    running: int = 0
    """Requests running."""
    free_pages: int = 0
    """Of all KV pages, as large a share as is free in the fuller of both length groups."""
    total_pages: int = 0
    """KV pages in all; 0 where they are not told."""
    transports: tuple[str, ...] = ()
    """KV transports, best first."""
    rejected_transports: tuple[str, ...] = ()
    """`name: reason` of each that was wanted and does not work there."""
    faults: str = ""
    """Faults that it makes on purpose in its transfers; empty when it makes none."""
    device: str = "cpu"
    """cpu, cuda:0 and so on."""
    methods_hash: str = ""
    """Changes with the pruning and page selection of its profile; empty when it is not told."""
    place: Topology = field(default_factory=Topology)
    """Where its memory is."""
    local_prefill_tokens: int = 0
    """Longest prompt that a decode worker would read itself now; 0: none."""
    pairs: tuple[PairState, ...] = ()
    """What a prefill worker knows of its transports to decode workers."""

    @classmethod
    def of(cls, info: WorkerInfo, *, address: str) -> "WorkerCard":
        """The card of a worker that describes itself so; its load is not in it yet."""
        return cls(
            worker_id=info.worker_id,
            role=info.role,
            address=address,
            incarnation=info.incarnation,
            model=info.model,
            max_model_len=info.max_model_len,
            transports=info.transports,
            rejected_transports=info.rejected_transports,
            faults=info.faults,
            device=info.device,
            methods_hash=info.methods_hash,
            place=info.topology,
        )

    def to_json(self) -> str:
        """The card as one JSON object."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> "WorkerCard":
        """Reads a card; fields it does not know are left out, so that newer workers can register.

        Raises:
            ConfigError: not JSON, or a field is missing or of another type.
        """
        try:
            raw = json.loads(text)
            values = _known_values(cls, raw)
            values["model"] = ModelIdentity(**_known_values(ModelIdentity, raw["model"]))
            for names in ("transports", "rejected_transports"):
                values[names] = tuple(str(name) for name in values.get(names, ()))
            values["place"] = _place(raw.get("place", {}))
            values["pairs"] = tuple(
                PairState(**_known_values(PairState, pair))
                for pair in islice(raw.get("pairs", ()), MAX_PAIR_STATES)
            )
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"a worker card cannot be read ({error!r}): its worker runs another version "
                "or something else wrote to its key; upgrade the worker or clear the key"
            ) from error


def _place(raw: Any) -> Topology:  # noqa: ANN401  parsed JSON is anything
    """A place; a worker that tells none, or something else, is one whose place is not known."""
    if not isinstance(raw, dict):
        return Topology()
    values: dict[str, Any] = {}
    for known in fields(Topology):
        value = raw.get(known.name)
        if known.type is str:
            values[known.name] = place_text(value)
        elif isinstance(value, list):
            values[known.name] = place_names(value)
    return Topology(**values)


def _known_values(
    cls: type[WorkerCard] | type[ModelIdentity] | type[PairState],
    raw: Any,  # noqa: ANN401  parsed JSON is anything
) -> dict[str, Any]:
    """The fields of `cls` found in `raw`, with simple types checked."""
    values: dict[str, Any] = {}
    for known in fields(cls):
        if known.name not in raw:
            if known.default is MISSING and known.default_factory is MISSING:
                raise KeyError(known.name)
            continue
        value = raw[known.name]
        if known.type in {str, int, bool, float} and type(value) is not known.type:
            raise TypeError(f"{known.name} is {value!r}")
        values[known.name] = value
    return values

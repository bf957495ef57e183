"""The capability card: what a worker says of itself to those that may send it work."""

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from shared.errors import ConfigError
from shared.types.model_identity import ModelIdentity
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
    """KV pages free."""
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
    host: str = ""
    """Boot id of its machine; empty when it is not known."""
    gpu: str = ""
    """UUID of its GPU; empty without one."""
    nvlink_peers: tuple[str, ...] = ()
    """UUIDs of the GPUs that NVLink joins with its own, as far as its transports know."""

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
            host=info.topology.host,
            gpu=info.topology.gpu,
            nvlink_peers=info.topology.nvlink_peers,
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
            for names in ("transports", "rejected_transports", "nvlink_peers"):
                values[names] = tuple(str(name) for name in values.get(names, ()))
            return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"a worker card cannot be read ({error!r}): its worker runs another version "
                "or something else wrote to its key; upgrade the worker or clear the key"
            ) from error


def _known_values(
    cls: type[WorkerCard] | type[ModelIdentity],
    raw: Any,  # noqa: ANN401  parsed JSON is anything
) -> dict[str, Any]:
    """The fields of `cls` found in `raw`, with simple types checked."""
    values: dict[str, Any] = {}
    for field in fields(cls):
        if field.name not in raw:
            if field.default is MISSING:
                raise KeyError(field.name)
            continue
        value = raw[field.name]
        if field.type in {str, int, bool} and type(value) is not field.type:
            raise TypeError(f"{field.name} is {value!r}")
        values[field.name] = value
    return values

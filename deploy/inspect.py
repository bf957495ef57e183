"""`tandem inspect prune|pages`: what both methods choose for one prompt, in one process.

The engines' own path: the prefill runner's KV goes straight into a decode row. Pruning is never
bypassed (only a keep rate of 1 keeps all) and end-of-text does not end the answer.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.inspect import inspect_pages
from decode_service.engine.solo import PromptTensors
from deploy.page_picture import check_drawing, write_picture
from prefill_service.engine.inspect import (
    NO_OVERRIDES,
    CapturedPrefill,
    capture_prefill,
    inspect_prune,
)
from prefill_service.engine.runner import DEFAULT_CHUNK_TOKENS
from shared.errors import ConfigError, InvalidRequestError
from shared.kv.geometry import PAGE_SIZE
from shared.model.probe import probe_attention
from shared.model.weights import LoadedModel, load_model
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.effective import effective_sparsity
from shared.types.methods import PruningParams, SparsityParams
from shared.types.options import RequestOptions
from shared.types.page_summary import summary_of

_SHOWN = 12

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectRequest:
    """What to inspect, and with which changes to the model's profile."""

    model: str
    """Catalog name, folder, hub id or GGUF file."""
    prompt_file: Path | None
    """Text of the prompt, tokenized as it is."""
    token_ids: Path | None
    """JSON array of token ids, instead of text."""
    cache_dir: Path | None
    """Model cache."""
    dtype: str
    """float32 or bfloat16."""
    pruning: Mapping[str, Any]
    """Fields of PruningParams to change."""
    full_layers: tuple[int, ...] | None = None
    """F in place of the profile's."""
    profile: str = ""
    """Profile name or path; empty takes the model's own."""
    options: RequestOptions = NO_OVERRIDES
    """What a request may ask of both methods."""


def run_prune(request: InspectRequest, *, as_json: bool) -> int:
    """Prefills the prompt and prints what was kept.

    Raises:
        TandemError: the prompt, the model or a parameter is wrong.
    """
    loaded = _load(request)
    report = _prefilled(inspect_prune, loaded, request)
    if as_json:
        print(json.dumps(report))
        return 0
    table = Table("layer", "mode", "kept", "first positions")
    for layer in report["layers"]:
        first = layer["positions"][0]
        shown = ", ".join(map(str, first[:_SHOWN]))
        table.add_row(str(layer["layer"]), layer["mode"], str(len(first)), shown)
    console = Console()
    console.print(table)
    console.print(
        f"kept {len(report['kept'])} of {report['prompt_tokens']} tokens, next position "
        f"{report['next_position']}, first token {report['first_token_id']}, "
        f"{report['kv_bytes']} KV bytes, {report['seconds']:.2f} s"
    )
    return 0


def run_pages(
    request: InspectRequest,
    *,
    max_tokens: int,
    as_json: bool,
    png: Path | None = None,
    layer: int | None = None,
) -> int:
    """Prefills the prompt, decodes greedily and prints the pages that each layer read.

    Args:
        request: what to inspect.
        max_tokens: tokens to generate, the first one counted.
        as_json: print the whole report.
        png: picture to write.
        layer: layer of the picture.

    Raises:
        TandemError: the prompt, the model or a parameter is wrong.
    """
    check_drawing(png, layer=layer, max_tokens=max_tokens)
    loaded, captured = _prefill(request)
    prompt, sparsity = prompt_tensors(captured), _sparsity(loaded, request)
    report = inspect_pages(
        loaded.model,
        attention=TorchDecodeAttention(),
        prompt=prompt,
        first_token=int(captured.output.logits_V.argmax()),
        sparsity=sparsity,
        max_tokens=max_tokens,
    )
    pages = summary_of(sparsity)
    report["pages"] = pages.to_json()
    if png is not None:
        shown = write_picture(png, report, prompt=prompt, pages=pages, layer=layer)
        report["picture"] = {"file": str(png), "layer": shown}
    if as_json:
        print(json.dumps(report))
        return 0
    table = Table("position", "token", "attended", "dense", "read by the last layer")
    name = str(loaded.model.config.num_layers - 1)
    for token, step in zip(report["token_ids"], report["steps"], strict=False):
        units = step["layers"][name]
        table.add_row(
            str(step["position"]),
            str(token),
            str(step["attended"]),
            str(step["dense"]),
            _units_text(units, unit=step["unit"][name]),
        )
    console = Console()
    console.print(table)
    if png is not None:
        console.print(f"layer {report['picture']['layer']} is drawn in {png}", soft_wrap=True)
    return 0


def _units_text(units: list[Any], *, unit: int) -> str:
    """The last pages or slots of a layer; of the first head where heads choose apart."""
    apart = bool(units) and isinstance(units[0], list)
    shown = ", ".join(map(str, (units[0] if apart else units)[-_SHOWN:]))
    return ("" if unit == PAGE_SIZE else "slots ") + shown + (" (head 0)" if apart else "")


def prompt_tensors(captured: CapturedPrefill) -> PromptTensors:
    """A captured prefill in the decode side's terms."""
    slab = captured.plan.slab
    return PromptTensors(
        prompt_tokens=captured.plan.prompt_tokens,
        layouts=slab.layouts,
        layer_layouts=slab.layer_layouts,
        positions=captured.kv.positions_RN,
        keys_values=[captured.kv.layer(index) for index in range(len(slab.layer_layouts))],
    )


def _load(request: InspectRequest) -> LoadedModel:
    return load_model(
        request.model,
        dtype=request.dtype,
        cache_dir=request.cache_dir,
        profile=request.profile,
    )


def _prefill(request: InspectRequest) -> tuple[LoadedModel, CapturedPrefill]:
    loaded = _load(request)
    return loaded, _prefilled(capture_prefill, loaded, request)


def _prefilled(
    prefill: Callable[..., Found], loaded: LoadedModel, request: InspectRequest
) -> Found:
    return prefill(
        loaded.model,
        attention=probe_attention(loaded.model.device).backend,
        token_ids=read_prompt(request, folder=loaded.folder),
        params=_pruning(loaded, request),
        chunk_tokens=DEFAULT_CHUNK_TOKENS,
        options=request.options,
    )


def read_prompt(request: InspectRequest, *, folder: Path) -> list[int]:
    """Token ids of the prompt, from whichever file was given.

    Raises:
        InvalidRequestError: both files or none, an unreadable file, or no JSON array of ids.
    """
    if (request.prompt_file is None) == (request.token_ids is None):
        raise InvalidRequestError(
            f"{'neither' if request.token_ids is None else 'each'} of --prompt-file and "
            "--token-ids was given, two forms of one prompt; give exactly one"
        )
    path = request.prompt_file or request.token_ids
    assert path is not None, "checked above"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read ({error}); check the path and that it is UTF-8 text"
        ) from error
    if request.prompt_file is not None:
        return Tokenizer.from_folder(folder).encode(text)
    return _token_ids(text, path)


def _token_ids(text: str, path: Path) -> list[int]:
    try:
        ids = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{path} is not JSON ({error}); write [1, 2, 3]") from error
    if not isinstance(ids, list) or not all(type(item) is int for item in ids):
        raise InvalidRequestError(f"{path} is not a JSON array of whole numbers; write [1, 2, 3]")
    return ids


def _pruning(loaded: LoadedModel, request: InspectRequest) -> PruningParams:
    return replace(loaded.profile.pruning, **_given(request.pruning))


def _sparsity(loaded: LoadedModel, request: InspectRequest) -> SparsityParams | None:
    """What a server with this profile would make of the request."""
    sparsity = replace(loaded.profile.sparsity, **_given({"full_layers": request.full_layers}))
    depth = loaded.model.config.num_layers
    if sparsity.full_layers[-1] >= depth:
        raise ConfigError(
            f"--full-layers names layer {sparsity.full_layers[-1]}, but the model has {depth} "
            f"layers, 0 to {depth - 1}; leave it out"
        )
    return effective_sparsity(sparsity, request.options, num_layers=depth)


def _given(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}

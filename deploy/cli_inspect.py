"""The `tandem inspect` sub-commands: flags in, `deploy.inspect` does the work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from deploy.lists import numbers_in
from shared.errors import ConfigError
from shared.types.methods import Aggregation, KvSelect, PageHeads, PageLayout
from shared.types.options import RequestOptions, TokenRange
from shared.types.page_policies import PagePolicyName

inspect_app = typer.Typer(no_args_is_help=True, help="What the two methods choose, in one process.")

Model = Annotated[str, typer.Option(help="Catalog name, folder, hub id or GGUF file.")]
PromptFile = Annotated[Path | None, typer.Option(help="Prompt as UTF-8 text.")]
TokenIds = Annotated[Path | None, typer.Option(help="Prompt as a JSON array of token ids.")]
Keep = Annotated[float | None, typer.Option(help="Keep rate r in (0, 1]; 1 keeps all.")]
PruningLayer = Annotated[int | None, typer.Option("--lp", help="Pruning layer, 0-based.")]
AggregationWindow = Annotated[int | None, typer.Option("--n", help="Layers that are aggregated.")]
Deferred = Annotated[int | None, typer.Option("--m", help="First layers that keep all KV.")]
Window = Annotated[int | None, typer.Option(help="Observation window W, in tokens.")]
Agg = Annotated[Aggregation | None, typer.Option(help="How layers are combined.")]
Select = Annotated[KvSelect | None, typer.Option(help="Whose positions layers m..lp keep.")]
ProtectFirst = Annotated[int | None, typer.Option(min=0, max=1, help="1 always keeps token 0.")]
MinKeep = Annotated[int | None, typer.Option(help="Floor of the kept count, in tokens.")]
RankerName = Annotated[str | None, typer.Option("--ranker", help="Ranking method, as claa.")]
KvRate = Annotated[float | None, typer.Option(help="Share of the prompt in pruned caches; r.")]
Protect = Annotated[
    list[str] | None,
    typer.Option(
        help="Prompt tokens START:END that are always kept, END not included; repeatable."
    ),
]
Mass = Annotated[float | None, typer.Option(help="Keep what holds this share of the attention.")]
MinRate = Annotated[float | None, typer.Option(help="Least keep rate that --mass may come to.")]
MaxRate = Annotated[float | None, typer.Option(help="Largest keep rate that --mass may come to.")]
FullLayers = Annotated[str | None, typer.Option(help="Layers with full attention, as 0,1,2,14,22.")]
Policy = Annotated[PagePolicyName | None, typer.Option(help="What chooses the pages.")]
PageBudget = Annotated[int | None, typer.Option(help="Pages K, recency included.")]
Recency = Annotated[int | None, typer.Option(help="Recency pages L, always read.")]
Layout = Annotated[
    PageLayout | None, typer.Option(help="How a choice serves layers that hold other tokens.")
]
Heads = Annotated[PageHeads | None, typer.Option(help="One choice, or one a KV head.")]
Refresh = Annotated[int | None, typer.Option(help="Steps between two choices.")]
PageMass = Annotated[
    float | None, typer.Option(help="Pages with this share of the score, --page-budget at most.")
]
Png = Annotated[Path | None, typer.Option(help="Picture to write; needs the extra `eval`.")]
Layer = Annotated[
    int | None, typer.Option(help="Layer of the picture; the last one that skips a page if unset.")
]
Profile = Annotated[str, typer.Option(help="Profile name or TOML file; the model's own if empty.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]
CacheDir = Annotated[Path | None, typer.Option(help="Model cache.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@inspect_app.command("prune")
def prune(
    model: Model = "smollm2",
    prompt_file: PromptFile = None,
    token_ids: TokenIds = None,
    keep: Keep = None,
    lp: PruningLayer = None,
    n: AggregationWindow = None,
    m: Deferred = None,
    window: Window = None,
    agg: Agg = None,
    kv_select: Select = None,
    protect_first: ProtectFirst = None,
    min_keep: MinKeep = None,
    ranker: RankerName = None,
    kv_rate: KvRate = None,
    protect: Protect = None,
    mass: Mass = None,
    min_rate: MinRate = None,
    max_rate: MaxRate = None,
    profile: Profile = "",
    dtype: Dtype = "float32",
    cache_dir: CacheDir = None,
    as_json: Json = False,
) -> None:
    """Which prompt tokens a ranking method keeps. Without a flag the model's profile decides.

    JSON keys: prompt_tokens, kept, layers [{layer, mode, positions}], next_position,
    first_token_id, kv_bytes, seconds.
    """
    from deploy.inspect import InspectRequest, run_prune

    request = InspectRequest(
        model=model,
        prompt_file=prompt_file,
        token_ids=token_ids,
        cache_dir=cache_dir,
        dtype=dtype,
        profile=profile,
        pruning=_prune(lp, n, m, window, agg, kv_select, protect_first, min_keep, ranker, kv_rate),
        options=_options(keep, protect, mass, min_rate, max_rate),
    )
    run_prune(request, as_json=as_json)


@inspect_app.command("pages")
def pages(
    model: Model = "smollm2",
    prompt_file: PromptFile = None,
    token_ids: TokenIds = None,
    keep: Keep = None,
    lp: PruningLayer = None,
    n: AggregationWindow = None,
    m: Deferred = None,
    window: Window = None,
    agg: Agg = None,
    kv_select: Select = None,
    protect_first: ProtectFirst = None,
    min_keep: MinKeep = None,
    ranker: RankerName = None,
    kv_rate: KvRate = None,
    protect: Protect = None,
    mass: Mass = None,
    min_rate: MinRate = None,
    max_rate: MaxRate = None,
    full_layers: FullLayers = None,
    policy: Policy = None,
    page_budget: PageBudget = None,
    recency: Recency = None,
    layout: Layout = None,
    heads: Heads = None,
    refresh: Refresh = None,
    page_mass: PageMass = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens, the first counted.")] = 32,
    profile: Profile = "",
    dtype: Dtype = "float32",
    cache_dir: CacheDir = None,
    png: Png = None,
    layer: Layer = None,
    as_json: Json = False,
) -> None:
    """Which KV pages layers read at each step, greedily. Without a flag the profile decides.

    JSON keys: policy, roles (of the layers), pages (the policy's parameters), token_ids (begins
    with the first token), steps [{position, layers, unit, refreshed, churn, attended, dense}],
    picture ({file, layer}, with --png). A unit is a page of 16 slots or one slot; where heads
    choose apart, a layer has a list a head.
    """
    from deploy.inspect import InspectRequest, run_pages

    request = InspectRequest(
        model=model,
        prompt_file=prompt_file,
        token_ids=token_ids,
        cache_dir=cache_dir,
        dtype=dtype,
        profile=profile,
        pruning=_prune(lp, n, m, window, agg, kv_select, protect_first, min_keep, ranker, kv_rate),
        options=replace(
            _options(keep, protect, mass, min_rate, max_rate),
            **_pages(policy, page_budget, recency, layout, heads, refresh, page_mass),
        ),
        full_layers=_layers(full_layers),
    )
    run_pages(request, max_tokens=max_tokens, png=png, layer=layer, as_json=as_json)


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    return numbers_in(text, flag="--full-layers", kind=int, like="0,1,2,14,22")


def parse_ranges(texts: Sequence[str]) -> tuple[TokenRange, ...]:
    """Token ranges of texts like 0:20.

    Raises:
        ConfigError: one is no such range.
    """
    ranges = []
    for text in texts:
        start, _, end = text.partition(":")
        if not (start.isdecimal() and end.isdecimal()):
            raise ConfigError(
                f"--protect cannot be {text!r}: write the first token and the one after the last, "
                "like 0:20"
            )
        ranges.append(TokenRange(int(start), int(end)))
    return tuple(ranges)


def _prune(
    lp: int | None,
    n: int | None,
    m: int | None,
    window: int | None,
    agg: Aggregation | None,
    kv_select: KvSelect | None,
    protect_first: int | None,
    min_keep: int | None,
    ranker: str | None,
    kv_rate: float | None,
) -> dict[str, Any]:
    return {
        "pruning_layer": lp,
        "aggregation_window": n,
        "deferred_layers": m,
        "observation_window": window,
        "aggregation": agg,
        "kv_select": kv_select,
        "protect_first": None if protect_first is None else bool(protect_first),
        "min_keep": min_keep,
        "ranker": ranker,
        "kv_rate": kv_rate,
    }


def _pages(
    policy: PagePolicyName | None,
    page_budget: int | None,
    recency: int | None,
    layout: PageLayout | None,
    heads: PageHeads | None,
    refresh: int | None,
    page_mass: float | None,
) -> dict[str, Any]:
    return {
        "page_policy": policy,
        "page_budget": page_budget,
        "recency_pages": recency,
        "page_layout": layout,
        "page_heads": heads,
        "page_refresh": refresh,
        "page_mass": page_mass,
    }


def _options(
    keep: float | None,
    protect: list[str] | None,
    mass: float | None,
    min_rate: float | None,
    max_rate: float | None,
) -> RequestOptions:
    return RequestOptions(
        keep_rate=keep,
        protect=parse_ranges(protect or []),
        mass=mass,
        min_rate=min_rate,
        max_rate=max_rate,
    )

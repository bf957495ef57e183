"""Which prefill worker goes with which decode worker: the faster link, while the load is even."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from gateway.pairing.links import Link, link_between
from shared.discovery.card import WorkerCard
from shared.types.model_identity import ModelIdentity

MAX_LOOKED_AT = 8
"""Workers of a role whose links are looked at: a choice takes no longer in a large cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A worker in the order of the balancer."""

    card: WorkerCard
    """Who it is."""
    load: int
    """Tokens at work there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairChoice:
    """One prefill worker and the decode workers for its KV."""

    prefill: WorkerCard
    """Reads the prompt."""
    decodes: tuple[WorkerCard, ...]
    """In order of preference; empty when none fits."""
    link: Link
    """To the first of them."""


def choose_pair(
    prefills: Sequence[Ranked], decodes: Sequence[Ranked], *, band_tokens: int
) -> PairChoice:
    """The pair with the fastest link among those that are about as light as the balancer's own.

    Args:
        prefills: in the balancer's order; at least one.
        decodes: in the balancer's order.
        band_tokens: how much more load than the balancer's choice a worker may have; 0 leaves
            every choice to the balancer.
    """
    partners: dict[ModelIdentity, list[Ranked]] = {}
    options = []
    for prefill in _band(prefills, band_tokens) if band_tokens else prefills[:1]:
        model = prefill.card.model
        if model not in partners:
            partners[model] = [d for d in decodes if not model.differences(d.card.model)]
        options.append(_option(prefill, partners[model], band_tokens=band_tokens))
    # Of equal links the first stays: the balancer's order decides.
    return max(options, key=lambda option: (bool(option.decodes), option.link))


def _option(prefill: Ranked, decodes: Sequence[Ranked], *, band_tokens: int) -> PairChoice:
    near = _band(decodes, band_tokens) if band_tokens else []
    near = sorted(near, key=lambda d: -link_between(prefill.card, d.card))
    taken = {id(decode) for decode in near}
    ordered = (*near, *(d for d in decodes if id(d) not in taken))
    return PairChoice(
        prefill=prefill.card,
        decodes=tuple(decode.card for decode in ordered),
        link=link_between(prefill.card, ordered[0].card) if ordered else Link.NONE,
    )


def _band(workers: Sequence[Ranked], band_tokens: int) -> list[Ranked]:
    near = (w for w in workers if w.load <= workers[0].load + band_tokens)
    return list(islice(near, MAX_LOOKED_AT))

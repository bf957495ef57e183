"""Links between made-up workers, and the pair that is chosen for them."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.balancing.least_loaded import LeastLoaded
from gateway.balancing.round_robin import RoundRobin
from gateway.breaker import BreakerSettings
from gateway.pairing.links import Link, link_between
from gateway.pairing.pairs import MAX_LOOKED_AT, Ranked, choose_pair
from gateway.workers import ChoicePolicy, Workers
from shared.discovery.card import WorkerCard
from shared.types.pair_state import PairState
from shared.types.topology import Topology
from tests.support.made_up_workers import MODEL, Cards, card

BAND = 1_000


def gpu_card(worker_id: str, number: int, /, **changes: object) -> WorkerCard:
    """A worker on a machine whose GPUs 0-1 and 2-3 are joined."""
    place: dict[str, object] = {
        "host": "h",
        "pid_namespace": "1",
        "gpu": f"g{number}",
        "nvlink_peers": (f"g{number ^ 1}",),
    }
    place |= {name: changes.pop(name) for name in list(changes) if name in place}
    fields: dict[str, object] = {"transports": ("nixl", "grpc"), "place": Topology(**place)}  # type: ignore[arg-type]
    return card(worker_id, **(fields | changes))


def ranked(*loads: tuple[WorkerCard, int]) -> list[Ranked]:
    return [Ranked(card=worker, load=load) for worker, load in loads]


def workers_of(*cards: WorkerCard, policy: ChoicePolicy) -> Workers:
    breaker = BreakerSettings(failures=2, cooldown_s=5.0)
    return Workers(Cards(*cards), policy=policy, breaker=breaker)


def test_links_are_what_both_cards_allow() -> None:
    p0, d1 = gpu_card("p0", 0), gpu_card("d1", 1)
    assert link_between(p0, d1) is Link.NVLINK
    assert link_between(p0, gpu_card("d0", 0, nvlink_peers=())) is Link.NVLINK
    assert link_between(p0, gpu_card("d2", 2)) is Link.MACHINE
    assert link_between(p0, gpu_card("d1", 1, host="other")) is Link.NETWORK
    assert link_between(p0, gpu_card("d1", 1, gpu="")) is Link.MACHINE


def test_nvlink_counts_only_with_a_transport_that_copies_over_it() -> None:
    p0 = gpu_card("p0", 0)
    assert link_between(p0, gpu_card("d1", 1, transports=("grpc",))) is Link.MACHINE
    assert link_between(gpu_card("p0", 0, transports=("grpc",)), gpu_card("d1", 1)) is Link.MACHINE
    assert link_between(p0, gpu_card("d1", 1, transports=("other",))) is Link.NONE


def test_gpus_of_two_pid_namespaces_are_not_joined() -> None:
    p0, d1 = gpu_card("p0", 0), gpu_card("d1", 1, pid_namespace="2")
    assert link_between(p0, d1) is Link.MACHINE
    assert link_between(p0, gpu_card("d1", 1, pid_namespace="")) is Link.NVLINK


def test_a_transport_that_a_pair_had_to_give_up_joins_it_no_more() -> None:
    lost = PairState(worker_id="d1", transport="nixl", rejected="canary_failed")
    p0 = gpu_card("p0", 0, pairs=(lost,))
    assert link_between(p0, gpu_card("d1", 1)) is Link.MACHINE
    assert link_between(p0, gpu_card("d9", 1)) is Link.NVLINK
    assert link_between(p0, gpu_card("d1", 1, transports=("nixl",))) is Link.NONE
    fine = dataclasses.replace(lost, rejected="", gbps=300.0)
    assert link_between(gpu_card("p0", 0, pairs=(fine,)), gpu_card("d1", 1)) is Link.NVLINK


def test_cards_that_tell_nothing_are_on_the_network() -> None:
    assert link_between(card("p0"), card("d0")) is Link.NETWORK
    assert link_between(card("p0", place=Topology(host="h")), card("d0")) is Link.NETWORK
    assert (
        link_between(card("p0", place=Topology(host="h")), card("d0", place=Topology(host="h")))
        is Link.MACHINE
    )


def test_the_faster_link_wins_within_the_band() -> None:
    p0, d1, d2 = gpu_card("p0", 0), gpu_card("d1", 1), gpu_card("d2", 2)
    for load, first in ((BAND, "d1"), (BAND + 1, "d2")):
        choice = choose_pair(ranked((p0, 0)), ranked((d2, 0), (d1, load)), band_tokens=BAND)
        assert choice.decodes[0].worker_id == first
        assert {d.worker_id for d in choice.decodes} == {"d1", "d2"}


def test_the_prefill_worker_is_chosen_for_its_link_too() -> None:
    p0, p2, d3 = gpu_card("p0", 0), gpu_card("p2", 2), gpu_card("d3", 3)
    near = choose_pair(ranked((p0, 0), (p2, BAND)), ranked((d3, 0)), band_tokens=BAND)
    assert (near.prefill.worker_id, near.link) == ("p2", Link.NVLINK)
    loaded = choose_pair(ranked((p0, 0), (p2, BAND + 1)), ranked((d3, 0)), band_tokens=BAND)
    assert (loaded.prefill.worker_id, loaded.link) == ("p0", Link.MACHINE)
    off = choose_pair(ranked((p0, 0), (p2, 0)), ranked((d3, 0)), band_tokens=0)
    assert off.prefill.worker_id == "p0"


def test_equal_links_leave_the_choice_to_the_balancer() -> None:
    cards = [gpu_card("p0", 0), gpu_card("p1", 0)], [gpu_card("d1", 1), gpu_card("d2", 1)]
    choice = choose_pair(
        ranked((cards[0][1], 5), (cards[0][0], 0)),
        ranked((cards[1][1], 3), (cards[1][0], 0)),
        band_tokens=BAND,
    )
    assert (choice.prefill.worker_id, choice.decodes[0].worker_id) == ("p1", "d2")


def test_another_model_is_no_partner_however_near() -> None:
    other = dataclasses.replace(MODEL, model_hash="b")
    p0, p2 = gpu_card("p0", 0, model=other), gpu_card("p2", 2)
    d1 = gpu_card("d1", 1)
    choice = choose_pair(ranked((p0, 0), (p2, 0)), ranked((d1, 0)), band_tokens=BAND)
    assert choice.prefill.worker_id == "p2"
    assert choose_pair(ranked((p0, 0)), ranked((d1, 0)), band_tokens=BAND).decodes == ()


def test_workers_prefer_near_pairs_until_their_load_leaves_the_band() -> None:
    policy = ChoicePolicy(name="x", make_balancer=LeastLoaded, link_band_tokens=BAND)
    cards = [gpu_card("p0", 0), gpu_card("p2", 2, host="far"), gpu_card("d1", 1)]
    workers = workers_of(*cards, policy=policy)
    for _ in range(3):
        pair = workers.choose(avoid=set())
        assert (pair.prefill.worker_id, pair.reason) == ("p0", "x, nvlink")
    with workers.hold("p0", BAND + 1):
        pair = workers.choose(avoid=set())
        assert (pair.prefill.worker_id, pair.reason) == ("p2", "x")
    assert workers.choose(avoid={"p0"}).prefill.worker_id == "p2"


@settings(deadline=None)
@given(
    loads=st.lists(st.integers(0, 3 * BAND), min_size=8, max_size=8),
    gpus=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    band=st.integers(0, 2 * BAND),
)
def test_no_choice_is_heavier_than_the_band_allows(
    loads: list[int], gpus: list[int], band: int
) -> None:
    prefills = ranked(*((gpu_card(f"p{i}", gpus[i]), loads[i]) for i in range(4)))
    decodes = ranked(*((gpu_card(f"d{i}", gpus[i]), loads[i]) for i in range(4, 8)))
    choice = choose_pair(prefills, decodes, band_tokens=band)
    load = {worker.card.worker_id: worker.load for worker in (*prefills, *decodes)}
    assert load[choice.prefill.worker_id] <= prefills[0].load + band
    assert load[choice.decodes[0].worker_id] <= decodes[0].load + band
    assert sorted(d.worker_id for d in choice.decodes) == [f"d{i}" for i in range(4, 8)]
    faster = [
        (p, d)
        for p in prefills
        for d in decodes
        if p.load <= prefills[0].load + band
        and d.load <= decodes[0].load + band
        and link_between(p.card, d.card) > choice.link
    ]
    assert not faster or band == 0


def test_round_robin_still_takes_turns_among_equal_links() -> None:
    policy = ChoicePolicy(name="x", make_balancer=RoundRobin, link_band_tokens=BAND)
    workers = workers_of(card("p0"), card("p1"), card("d0"), policy=policy)
    assert [workers.choose(avoid=set()).prefill.worker_id for _ in range(4)] == [
        "p0", "p1", "p0", "p1",
    ]  # fmt: skip


def test_only_the_first_workers_of_a_large_cluster_are_looked_at() -> None:
    decodes = [gpu_card(f"d{i}", 2) for i in range(MAX_LOOKED_AT)]
    near = gpu_card("near", 1, role="decode")
    choice = choose_pair(
        ranked((gpu_card("p0", 0), 0)),
        ranked(*((worker, 0) for worker in (*decodes, near))),
        band_tokens=BAND,
    )
    assert (choice.link, len(choice.decodes)) == (Link.MACHINE, MAX_LOOKED_AT + 1)

"""`tandem plan measure`: engines and transfers of this machine, and the hops of a running pair."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.bench_transfer import measure as measure_transfers
from deploy.chat import open_client
from deploy.rest_client import served_models, stream_chat
from loadtest.machine import commit_text
from loadtest.micro.plan_contention import ContentionWork, Role, time_contention
from loadtest.micro.transfer import MIB
from loadtest.plan.measure import MeasureSettings, Surroundings, load, measure
from loadtest.plan.profile import Contention, MeasuredProfile, Overheads
from loadtest.plan.profile_file import write_profile
from shared.errors import ConfigError, TransportError
from shared.model.weights import LoadedModel

_PAIR_REQUESTS = 8
_PAIR_WARM_UPS = 2
_PAIR_TOKENS = 16
_PHASES = {"prefill", "first_decode", "decode"}


def run_measure(
    settings: MeasureSettings,
    *,
    out: Path,
    transport: str,
    sizes_mib: Sequence[int],
    url: str,
    same_host: bool,
    command: str,
) -> None:
    """Measures and writes the profile.

    Args:
        settings: of the engines.
        out: file.
        transport: name.
        sizes_mib: payloads to time.
        url: gateway of an idle pair; empty takes no time for what lies around compute.
        same_host: time each role beside the other one too.
        command: as it was typed.

    Raises:
        TandemError: something could not be measured, or would make no profile.
    """
    if len(set(sizes_mib)) < 2:  # noqa: PLR2004
        raise ConfigError("one size of a transfer makes no line: give two or more (--transfers)")
    found = measure_transfers(
        sizes=sizes_mib, transports=[transport], repeats=settings.repeats, quiet=False
    )
    seconds: dict[int, float] = {}
    for size in found["sizes"]:
        if transport not in size["gbps"]:
            raise TransportError(
                f"transport {transport} was not measured: "
                f"{found['rejected'].get(transport, 'it does not work here')}; choose another"
            )
        nbytes = size["mib"] * MIB
        seconds[nbytes] = nbytes / (size["gbps"][transport]["median"] * 1e9)
    # Before the engines: a pair on this machine must not compete with what is timed.
    overheads = pair_overheads(url) if url else Overheads(first_token_s=0.0, handoff_s=0.0)
    loaded = load(settings)
    surroundings = Surroundings(
        transport=transport,
        seconds_by_bytes=seconds,
        overheads=overheads,
        contention=contention_of(loaded, settings) if same_host else Contention(),
    )
    profile = measure(loaded, settings, surroundings, command=command, progress=_tell)
    write_profile(profile, out)
    _report(profile, out, with_pair=bool(url))


def contention_of(loaded: LoadedModel, settings: MeasureSettings) -> Contention:
    """How both roles slow each other down on this host, at the middle sizes of the settings.

    Raises:
        TandemError: it could not be measured.
    """
    work = ContentionWork(
        model=settings.model,
        device=settings.device,
        dtype=settings.dtype,
        threads=settings.threads,
        tokens=_middle(settings.lengths),
        batch=_middle(settings.all_batches),
        context=_middle(settings.contexts),
        kv_bytes=settings.kv_bytes,
        repeats=settings.repeats,
    )
    found = time_contention(loaded, work, progress=_tell)
    return Contention(prefill=found[Role.PREFILL], decode=found[Role.DECODE])


def _middle(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def pair_overheads(url: str) -> Overheads:
    """What a request to an idle pair waits for beside its own compute, medians.

    The pair says how long prefill and decode steps took; the rest of the client's times is theirs
    who stand between: connection, gateway, calls, handoff.

    Raises:
        TandemError: the pair cannot be reached or does not answer.
    """
    first, handoff = [], []
    with open_client(url) as client:
        model = served_models(client)[0]
        for number in range(_PAIR_WARM_UPS + _PAIR_REQUESTS):
            body = {
                "model": model,
                "messages": [{"role": "user", "content": f"Count from {number} upwards."}],
                "max_tokens": _PAIR_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                "tandem": {"mode": "full"},
            }
            answer = stream_chat(client, body, on_text=lambda _: None)
            if number < _PAIR_WARM_UPS:
                continue
            phases = _phases(answer.report, url)
            first.append(answer.ttft_s - phases["prefill"] / 1000)
            steps = (phases["first_decode"] + phases["decode"]) / 1000
            handoff.append(answer.seconds - answer.ttft_s - steps)
    return Overheads(
        first_token_s=max(0.0, statistics.median(first)),
        handoff_s=max(0.0, statistics.median(handoff)),
    )


def _phases(report: Mapping[str, object], url: str) -> Mapping[str, float]:
    phases = report.get("phases_ms")
    if not isinstance(phases, Mapping) or not phases.keys() >= _PHASES:
        raise ConfigError(
            f"the answers of {url} do not say how long their phases took: it is no gateway of a "
            "pair, or one of another version; give another --url"
        )
    return phases


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _report(profile: MeasuredProfile, out: Path, *, with_pair: bool) -> None:
    own = profile.overheads
    print(
        f"{out}: {profile.model.name}, {len(profile.prefill)} prompts, {len(profile.decode)} "
        f"decode steps, {len(profile.transfer)} transfers over {profile.transport}, "
        f"{1000 * own.first_token_s:.1f} ms around a first token, {1000 * own.handoff_s:.1f} ms "
        f"around a handoff; commit {commit_text(profile.origin)}"
    )
    if not with_pair:
        print("What lies around compute counts as 0: no pair was named (--url)", file=sys.stderr)

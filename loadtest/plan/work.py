"""What each request costs in one arm: seconds of prefill, bytes, pages, KV slots."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.load.plan import PlannedRequest
from loadtest.plan.arms import Arm
from loadtest.plan.curves import DecodeTimes, PrefillTimes, transfer_times
from loadtest.plan.profile import FULL, MeasuredProfile
from shared.errors import ConfigError
from shared.kv.geometry import pages_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request's demands."""

    request: PlannedRequest
    """Who asks."""
    prefill_s: float
    """Compute time of its prompt."""
    ready: tuple[float, ...]
    """Shares of it after which equal parts of the KV are final."""
    transfer_s: float
    """Time of its bytes on an idle link."""
    slots: float
    """KV slots of its prompt, mean over layers."""
    pages_front: int
    """Pages in each whole layer, the answer's growth included."""
    pages_rest: int
    """Pages in each other layer."""
    nbytes: int
    """Bytes of landing slab."""
    fits_context: bool = True
    """Prompt and answer are no longer than the model's context."""

    @property
    def steps(self) -> int:
        """Decode steps; the first token comes with the prefill."""
        return self.request.answer_tokens - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """All requests of a run in one arm."""

    arm: Arm
    """Which one."""
    works: list[Work]
    """In order of their arrival."""
    decode: DecodeTimes
    """Step times."""
    beyond_prefill: int
    """Prompts longer than was measured, whose time is a line drawn on."""
    beyond_decode: int
    """Requests whose context grows longer than was measured."""


def costs_of(requests: Iterable[PlannedRequest], profile: MeasuredProfile, arm: Arm) -> Costs:
    """Reads everything from the profile's curves.

    Raises:
        ConfigError: the arm was not measured, or most requests are longer than the model's
            context.
    """
    rates = {arm.keep_rate, FULL}
    prefill = {rate: PrefillTimes(profile, rate) for rate in rates}
    decode = DecodeTimes(profile, arm.policy)
    transfer = transfer_times(profile)
    shape, rule = profile.model, profile.pruning
    works, beyond_prefill, beyond_decode = [], 0, 0
    for request in requests:
        prompt, answer = request.prompt_tokens, request.answer_tokens
        kept = rule.kept(prompt, arm.keep_rate)
        times = prefill[FULL if kept == prompt else arm.keep_rate]
        held = shape.whole_layers * prompt + (shape.num_layers - shape.whole_layers) * kept
        slots, nbytes = held / shape.num_layers, held * shape.token_bytes
        beyond_prefill += prompt > times.longest
        beyond_decode += slots + answer > decode.longest
        works.append(
            Work(
                request=request,
                prefill_s=times.seconds(prompt),
                ready=times.ready(prompt),
                transfer_s=transfer(nbytes),
                slots=slots,
                pages_front=pages_for(prompt + answer - 1) if shape.whole_layers else 0,
                pages_rest=pages_for(kept + answer - 1)
                if shape.whole_layers < shape.num_layers
                else 0,
                nbytes=nbytes,
                fits_context=prompt + answer <= shape.max_model_len,
            )
        )
    _check_context(works, profile)
    return Costs(
        arm=arm,
        works=works,
        decode=decode,
        beyond_prefill=beyond_prefill,
        beyond_decode=beyond_decode,
    )


def _check_context(works: Sequence[Work], profile: MeasuredProfile) -> None:
    """A few that are too long are refused one by one, as a server does."""
    beyond = sum(not work.fits_context for work in works)
    if 2 * beyond > len(works):
        raise ConfigError(
            f"{beyond} of {len(works)} requests are longer than the {profile.model.max_model_len} "
            f"tokens that {profile.model.name} takes: the workload is for another model; choose "
            "other sizes (--sizes) or another profile"
        )

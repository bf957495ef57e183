"""Requests off the wire, checked against the model before any work is done for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from prefill_service.engine.job import PromptRequest, Target
from protos.tandem.v1 import prefill_pb2
from shared.errors import ContextLengthError, InvalidRequestError
from shared.types.effective import effective_sparsity
from shared.types.methods import SparsityParams
from shared.wire.identity import handoff_from_pb
from shared.wire.options import options_from_pb
from shared.wire.sampling import branches_from_pb, sampling_from_pb, stop_from_pb
from shared.wire.token_ids import ids_from_pb, largest_id

MAX_TARGETS = 64
"""Decode workers that one request may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a request must fit."""

    vocab_size: int
    """Token ids are below this."""
    max_model_len: int
    """Longest context in tokens, answer included."""
    num_layers: int
    """Decoder layers."""
    sparsity: SparsityParams
    """The profile's page selection: a request that breaks it would fail after its prefill."""


def prompt_from_pb(message: prefill_pb2.PrefillRequest, *, limits: ModelLimits) -> PromptRequest:
    """Checks and converts a prompt.

    Raises:
        InvalidRequestError: anything that the caller must change; `param` names it.
    """
    key = handoff_from_pb(message.handoff)
    token_ids = ids_from_pb(message.token_ids, message.packed_token_ids, param="prompt")
    _check_prompt(token_ids, limits)
    num_branches = branches_from_pb(message.num_branches)
    sampling = sampling_from_pb(message.sampling)
    stop = stop_from_pb(message.stop)
    _check_ids([token for token, _ in sampling.logit_bias], limits, param="logit_bias")
    _check_ids(stop.token_ids, limits, param="stop_token_ids")
    forced = tuple(message.forced_first_tokens)
    _check_forced(forced, limits, num_branches=num_branches)
    _check_earlier(message, prompt_and_earlier=len(token_ids), max_tokens=stop.max_tokens)
    options = options_from_pb(message.options)
    effective_sparsity(limits.sparsity, options, num_layers=limits.num_layers)
    return PromptRequest(
        key=key,
        token_ids=token_ids,
        sampling=sampling,
        stop=stop,
        options=options,
        targets=targets_from_pb(message.targets),
        deadline_s=message.deadline_ms / 1000 if message.deadline_ms else None,
        num_branches=num_branches,
        forced_first_tokens=forced,
        earlier_tokens=message.earlier_tokens,
    )


def targets_from_pb(messages: Sequence[prefill_pb2.DecodeTarget]) -> tuple[Target, ...]:
    """Checks and converts decode targets; of repeated ones the first stays.

    Raises:
        InvalidRequestError: none, too many, or one without an address.
    """
    if not 0 < len(messages) <= MAX_TARGETS:
        raise InvalidRequestError(
            f"{len(messages)} decode targets were named: the KV needs somewhere to go; "
            f"name 1 to {MAX_TARGETS} decode workers",
            param="targets",
        )
    found: dict[str, Target] = {}
    for message in messages:
        host, colon, port = message.address.rpartition(":")
        if not (host and colon and port.isdecimal()):
            raise InvalidRequestError(
                f"decode target address {message.address!r} is not host:port; correct it",
                param="targets",
            )
        name = message.worker_id or message.address
        found.setdefault(message.address, Target(name, message.address))
    return tuple(found.values())


def _check_prompt(token_ids: Sequence[int], limits: ModelLimits) -> None:
    if not token_ids:
        raise InvalidRequestError(
            "the prompt has no tokens, so there is nothing to continue; send at least one",
            param="prompt",
        )
    if len(token_ids) >= limits.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens, answer "
            f"included, but the prompt has {len(token_ids)}; shorten the prompt",
            param="prompt",
        )
    _check_ids(token_ids, limits, param="prompt")


def _check_forced(token_ids: tuple[int, ...], limits: ModelLimits, *, num_branches: int) -> None:
    if token_ids and len(token_ids) != num_branches:
        raise InvalidRequestError(
            f"{len(token_ids)} first tokens were forced on {num_branches} answers; send one each, "
            "or none",
            param="forced_first_tokens",
        )
    _check_ids(token_ids, limits, param="forced_first_tokens")


def _check_earlier(
    message: prefill_pb2.PrefillRequest, *, prompt_and_earlier: int, max_tokens: int
) -> None:
    """A replay goes on with one answer, of which something is left to generate."""
    earlier = message.earlier_tokens
    if earlier == 0:
        return
    checks = (
        (len(message.forced_first_tokens) == 1, "the one first token that follows them is missing"),
        (earlier < prompt_and_earlier, f"the {prompt_and_earlier} ids leave no prompt before them"),
        (earlier < max_tokens, f"the answer may have {max_tokens} in all"),
    )
    for ok, why in checks:
        if not ok:
            raise InvalidRequestError(
                f"{earlier} tokens of the answer are to be read with the prompt, but {why}; send "
                "prompt and answer as they were",
                param="earlier_tokens",
            )


def _check_ids(token_ids: Sequence[int], limits: ModelLimits, *, param: str) -> None:
    largest = largest_id(token_ids) if token_ids else 0
    if largest >= limits.vocab_size:
        raise InvalidRequestError(
            f"{param} holds token id {largest}, but this model's ids end at "
            f"{limits.vocab_size - 1}: it was made with another tokenizer; use this model's",
            param=param,
        )

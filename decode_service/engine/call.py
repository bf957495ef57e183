"""What a caller wants generated, and whether it fits the model and what was reserved for it."""

from dataclasses import dataclass

from decode_service.engine.handoffs import AdoptedKv, ReserveSpec
from shared.errors import InvalidRequestError
from shared.types.handoff import HandoffKey
from shared.types.options import RequestOptions
from shared.types.sampling import SamplingParams, StopConditions


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCall:
    """What a caller wants generated."""

    handoff: HandoffKey
    """The adopted handoff."""
    first_token: int
    """The first token, as the client saw it; in a replay, the last one that it saw."""
    sampling: SamplingParams
    """How tokens are drawn."""
    stop: StopConditions
    """When the answer ends, the first token counted."""
    options: RequestOptions
    """Overrides of the profile."""
    grammar: str = ""
    """What the answer must conform to; empty: anything."""
    branch: int = 0
    """Which of n answers."""
    earlier_tokens: tuple[int, ...] = ()
    """A replay: the answer's tokens before `first_token`; their KV came with the prompt's."""
    deadline_s: float | None = None
    """Remaining time of the request."""

    @property
    def shown(self) -> tuple[int, ...]:
        """The answer so far, the first token included."""
        return (*self.earlier_tokens, self.first_token)


def check_call(call: DecodeCall, *, branches: int, vocab_size: int) -> None:
    """Checks what can be said before the KV cache is there.

    Args:
        call: what is wanted.
        branches: answers that room was reserved for.
        vocab_size: token ids are below this.

    Raises:
        InvalidRequestError: it does not fit; `param` names what.
    """
    if call.branch >= branches:
        raise InvalidRequestError(
            f"branch {call.branch} was asked for, but room was reserved for "
            f"{branches} answers; reserve for as many as are to be decoded",
            param="n",
        )
    named = {
        "first_token": (call.first_token,),
        "earlier_tokens": call.earlier_tokens,
        "logit_bias": tuple(token_id for token_id, _ in call.sampling.logit_bias),
        "stop_token_ids": call.stop.token_ids,
    }
    for param, ids in named.items():
        if max(ids, default=0) >= vocab_size:
            raise InvalidRequestError(
                f"{param} holds token id {max(ids)}, outside the vocabulary of "
                f"{vocab_size}; send ids of this model's tokenizer",
                param=param,
            )


def check_against(call: DecodeCall, spec: ReserveSpec, adopted: AdoptedKv) -> None:
    """Checks a call against the room that was reserved and the KV cache that came.

    Raises:
        InvalidRequestError: they do not fit each other; `param` names what.
    """
    earlier = len(call.earlier_tokens)
    if adopted.manifest.draws != 1 + earlier:
        raise InvalidRequestError(
            f"{earlier} earlier tokens of the answer were sent, but the KV cache was read with "
            f"{adopted.manifest.draws - 1} of them; send both services the same answer so far",
            param="earlier_tokens",
        )
    if call.stop.max_tokens - earlier > spec.max_new_tokens:
        raise InvalidRequestError(
            f"max_tokens {call.stop.max_tokens} is more than the {spec.max_new_tokens + earlier} "
            "that pages were reserved for; send the same stop conditions to both services",
            param="max_tokens",
        )
    if call.sampling.repetition_penalty != 1.0 and not adopted.prompt_ids:
        raise InvalidRequestError(
            "repetition_penalty looks at the prompt, whose token ids the commit did not carry; "
            "the prefill worker must send them",
            param="repetition_penalty",
        )

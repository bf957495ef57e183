"""Sampling, stop conditions and tokens on the wire."""

from functools import lru_cache

from protos.tandem.v1 import common_pb2
from shared.errors import InvalidRequestError
from shared.types.sampling import FinishReason, SampledToken, SamplingParams, StopConditions
from shared.wire.checks import number

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_BIAS = 100.0
MAX_BRANCHES = 128
"""Answers to one prompt that a request may ask for: OpenAI's own limit."""

_FINISH = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: common_pb2.FINISH_REASON_CANCELLED,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
    FinishReason.TOOL_CALLS: common_pb2.FINISH_REASON_TOOL_CALLS,
}
_FINISH_BACK = {value: key for key, value in _FINISH.items()}


def sampling_to_pb(params: SamplingParams) -> common_pb2.SamplingParams:
    """Every field is set, so that proto3 zeros never stand for defaults."""
    return common_pb2.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.seed,
        logit_bias=[common_pb2.LogitBias(token_id=t, bias=b) for t, b in params.logit_bias],
        logprobs=params.logprobs,
    )


def sampling_from_pb(message: common_pb2.SamplingParams) -> SamplingParams:
    """Checks ranges; top_p 0 and repetition_penalty 0 mean "unset", being otherwise meaningless.

    Raises:
        InvalidRequestError: a value is not finite or out of range; `param` names it.
    """
    logprobs = message.logprobs if message.HasField("logprobs") else None
    if logprobs is not None and logprobs > MAX_LOGPROBS:
        raise InvalidRequestError(
            f"logprobs is {logprobs}, more than {MAX_LOGPROBS}; ask for fewer", param="logprobs"
        )
    return SamplingParams(
        temperature=number(message.temperature, param="temperature", low=0, high=2),
        top_p=number(message.top_p or 1.0, param="top_p", low=0, high=1, low_open=True),
        top_k=message.top_k,
        min_p=number(message.min_p, param="min_p", low=0, high=1),
        presence_penalty=number(message.presence_penalty, param="presence_penalty", low=-2, high=2),
        frequency_penalty=number(
            message.frequency_penalty, param="frequency_penalty", low=-2, high=2
        ),
        repetition_penalty=number(
            message.repetition_penalty or 1.0,
            param="repetition_penalty",
            low=0,
            high=10,
            low_open=True,
        ),
        seed=message.seed,
        logit_bias=tuple(
            (
                entry.token_id,
                number(entry.bias, param="logit_bias", low=-MAX_BIAS, high=MAX_BIAS),
            )
            for entry in message.logit_bias
        ),
        logprobs=logprobs,
    )


def stop_to_pb(stop: StopConditions) -> common_pb2.StopConditions:
    """Converts stop conditions."""
    return common_pb2.StopConditions(
        max_tokens=stop.max_tokens,
        min_tokens=stop.min_tokens,
        token_ids=stop.token_ids,
        strings=stop.strings,
    )


def stop_from_pb(message: common_pb2.StopConditions) -> StopConditions:
    """Checks and converts stop conditions.

    Raises:
        InvalidRequestError: no tokens allowed, minimum above maximum, empty or too many strings.
    """
    if message.max_tokens < 1:
        raise InvalidRequestError(
            "max_tokens is 0, so nothing could be generated; ask for at least 1", param="max_tokens"
        )
    if message.min_tokens > message.max_tokens:
        raise InvalidRequestError(
            f"min_tokens {message.min_tokens} exceeds max_tokens {message.max_tokens}; "
            "lower it or raise max_tokens",
            param="min_tokens",
        )
    if len(message.strings) > MAX_STOP_STRINGS or not all(message.strings):
        raise InvalidRequestError(
            f"stop holds an empty string or more than {MAX_STOP_STRINGS} strings; "
            "send fewer, each with at least one character",
            param="stop",
        )
    return StopConditions(
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        token_ids=tuple(message.token_ids),
        strings=tuple(message.strings),
    )


def branches_from_pb(count: int) -> int:
    """How many answers share a prompt; 0 on the wire means one.

    Raises:
        InvalidRequestError: more than any request may ask for.
    """
    if count > MAX_BRANCHES:
        raise InvalidRequestError(
            f"{count} answers to one prompt were asked for, more than {MAX_BRANCHES}; lower n",
            param="n",
        )
    return max(1, count)


def token_to_pb(token: SampledToken) -> common_pb2.SampledToken:
    """Converts one token."""
    return common_pb2.SampledToken(
        token_id=token.token_id,
        logprob=token.logprob,
        top=[common_pb2.TokenLogprob(token_id=t, logprob=p) for t, p in token.top],
    )


def token_from_pb(message: common_pb2.SampledToken) -> SampledToken:
    """Converts one token."""
    if not message.HasField("logprob") and not message.top:
        return _bare_token(message.token_id)
    return SampledToken(
        token_id=message.token_id,
        logprob=message.logprob if message.HasField("logprob") else None,
        top=tuple((entry.token_id, entry.logprob) for entry in message.top),
    )


@lru_cache(maxsize=65_536)
def _bare_token(token_id: int) -> SampledToken:
    """Immutable and the same every time, so it is made once: streams bring thousands a second."""
    return SampledToken(token_id=token_id)


def finish_to_pb(reason: FinishReason) -> common_pb2.FinishReason.ValueType:
    """Converts a finish reason."""
    return _FINISH[reason]


def finish_from_pb(value: common_pb2.FinishReason.ValueType) -> FinishReason:
    """Converts a finish reason.

    Raises:
        InvalidRequestError: unset or from a newer protocol.
    """
    if value not in _FINISH_BACK:
        raise InvalidRequestError(
            f"finish reason {value} is unknown: the peer speaks a newer protocol; upgrade this side"
        )
    return _FINISH_BACK[value]

"""A checked request as the values that workers take."""

import random
from typing import TypeVar

from gateway.prompt_parts import NOTHING_ASKED, AskedParts
from gateway.schema.generation import MAX_SEED, GenerationBody, TandemOptions
from shared.errors import ContextLengthError, InvalidRequestError
from shared.types.options import Mode, PromptPart, RequestOptions, TokenRange
from shared.types.sampling import SamplingParams, StopConditions

T = TypeVar("T")

_MAX_DIGITS = 20


def sampling_of(body: GenerationBody, *, vocab_size: int) -> SamplingParams:
    """Sampling parameters; a seed is drawn when the client gave none.

    Raises:
        InvalidRequestError: a biased token is outside the vocabulary.
    """
    defaults = SamplingParams()
    return SamplingParams(
        temperature=_or(body.temperature, defaults.temperature),
        top_p=_or(body.top_p, defaults.top_p),
        top_k=max(0, _or(body.top_k, defaults.top_k)),
        min_p=_or(body.min_p, defaults.min_p),
        presence_penalty=_or(body.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_or(body.frequency_penalty, defaults.frequency_penalty),
        repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
        seed=draw_seed() if body.seed is None else body.seed & MAX_SEED,
        logit_bias=_biases(body.logit_bias or {}, vocab_size),
        logprobs=body.top_logprob_count(),
    )


def stop_of(
    body: GenerationBody, *, max_tokens: int, eos_ids: tuple[int, ...], vocab_size: int
) -> StopConditions:
    """Stop conditions with end-of-text among the ids, unless ignored.

    Raises:
        InvalidRequestError: a stop id is outside the vocabulary.
    """
    given = body.stop_token_ids or []
    if given:
        largest = max(given)
        param = f"stop_token_ids.{given.index(largest)}"
        check_token_id(largest, vocab_size=vocab_size, param=param)
    ids = set(given) if body.ignore_eos else set(given) | set(eos_ids)
    return StopConditions(
        max_tokens=max_tokens,
        min_tokens=min(body.min_tokens or 0, max_tokens),
        token_ids=tuple(sorted(ids)),
        strings=tuple(body.stop or ()),
    )


def options_of(options: TandemOptions | None) -> RequestOptions:
    """Overrides of the model profile; the conversation's own parts are in `parts_of`.

    Raises:
        InvalidRequestError: they contradict each other or are out of range.
    """
    if options is None:
        return RequestOptions()
    translated = RequestOptions(
        mode=Mode(options.mode) if options.mode is not None else Mode.AUTO,
        keep_rate=options.keep_rate,
        min_keep=options.min_keep,
        page_budget=options.page_budget,
        recency_pages=options.recency_pages,
        protect=tuple(TokenRange(*e) for e in options.protect or () if not isinstance(e, str)),
        observation_window=options.window if isinstance(options.window, int) else None,
        mass=options.mass,
        min_rate=options.min_rate,
        max_rate=options.max_rate,
        page_policy=options.page_policy,
        page_layout=options.page_layout,
        page_heads=options.page_heads,
        page_refresh=options.page_refresh,
        page_mass=options.page_mass,
        trace=bool(options.trace),
        replay=bool(options.replay),
    )
    translated.check_pruning()
    translated.check_pages()
    return translated


def parts_of(options: TandemOptions | None) -> AskedParts:
    """The parts of the conversation that `tandem` names."""
    if options is None:
        return NOTHING_ASKED
    return AskedParts(
        protect=tuple(PromptPart(e) for e in options.protect or () if isinstance(e, str)),
        question_window=options.window == "question",
    )


def fit_context(*, prompt_tokens: int, asked: int | None, limit: int, param: str) -> int:
    """Tokens that the answer may have; all the remaining context when the client set no limit.

    Args:
        prompt_tokens: length of the prompt.
        asked: the client's limit of the answer.
        limit: the model's context, in tokens.
        param: which field the prompt came from.

    Raises:
        ContextLengthError: prompt and answer do not fit.
    """
    answer = asked if asked is not None else 1
    if prompt_tokens + answer > limit:
        raise ContextLengthError(
            f"This model's maximum context length is {limit} tokens, but this request needs "
            f"{prompt_tokens + answer}: {prompt_tokens} in the {param} and {answer} for the "
            f"answer. Shorten the {param} or ask for fewer tokens.",
            param=param,
        )
    return asked if asked is not None else limit - prompt_tokens


def check_token_id(token_id: int, *, vocab_size: int, param: str) -> None:
    """Checks one id.

    Raises:
        InvalidRequestError: it is outside the vocabulary.
    """
    if not 0 <= token_id < vocab_size:
        raise InvalidRequestError(
            f"token id {token_id} is outside the vocabulary of {vocab_size}; "
            "use ids of this model's tokenizer",
            param=param,
        )


def draw_seed() -> int:
    """A seed for a request without one."""
    return random.SystemRandom().getrandbits(64)


def _biases(given: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = []
    for key, bias in given.items():
        if not key.isascii() or not key.isdigit():
            raise InvalidRequestError(
                f"logit_bias has the key {key[:32]!r}, which is not a token id; use decimal ids",
                param="logit_bias",
            )
        # A longer number is no id, and from some length on not even one that Python reads.
        token_id = int((key.lstrip("0") or "0")[:_MAX_DIGITS])
        check_token_id(token_id, vocab_size=vocab_size, param="logit_bias")
        biases.append((token_id, bias))
    return tuple(biases)


def _or(value: T | None, default: T) -> T:
    return default if value is None else value

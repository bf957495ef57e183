"""What a model answers from a prompt's KV: greedy text, and whether a given answer is that text.

Shapes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from loadtest.quality.tail import PromptKv, TailRun
from prefill_service.engine.evaluate import EvaluatedPrompt
from shared.errors import ConfigError
from shared.model.transformer import Transformer

_BATCH_BYTES = {"cuda": 8 << 30, "cpu": 1 << 30}
"""KV copied for one batch of rows, on each kind of device."""
_BATCH_ROWS = 64


def generate(
    model: Transformer, prompt: EvaluatedPrompt, *, max_tokens: int, stop_ids: Collection[int]
) -> list[int]:
    """The greedy answer to one prompt; see `generate_many`."""
    return generate_many(model, [prompt], max_tokens=max_tokens, stop_ids=stop_ids)[0]


@torch.inference_mode()
def generate_many(
    model: Transformer,
    prompts: Sequence[EvaluatedPrompt],
    *,
    max_tokens: int,
    stop_ids: Collection[int],
    questions: Sequence[Sequence[int]] | None = None,
) -> list[list[int]]:
    """Greedy answers by dense decode over each prompt's own KV, in the order of `prompts`.

    Args:
        model: the decoder that read the prompts.
        prompts: what it kept of them.
        max_tokens: tokens of an answer at most.
        stop_ids: tokens that end an answer, and are not part of it.
        questions: tokens that follow each prompt, at the positions after it, before the answer:
            for prompts that were pruned before their question was known. At least one each.

    Raises:
        ConfigError: max_tokens is below 1, or a question is empty.
    """
    if max_tokens < 1:
        raise ConfigError(f"max_tokens is {max_tokens}: an answer has room for at least 1 token")
    asked = _questions(prompts, questions)
    answers: list[list[int]] = [[] for _ in prompts]
    for rows in _batches(model, prompts, room=max_tokens + max(map(len, asked), default=0)):
        found = _generate_batch(
            model,
            [prompts[row] for row in rows],
            questions=[asked[row] for row in rows],
            max_tokens=max_tokens,
            stop_ids=stop_ids,
        )
        for row, answer in zip(rows, found, strict=True):
            answers[row] = answer
    return answers


@torch.inference_mode()
def answers_are_greedy(
    model: Transformer,
    prompts: Sequence[EvaluatedPrompt],
    answers: Sequence[Sequence[int]],
    *,
    questions: Sequence[Sequence[int]] | None = None,
) -> list[bool]:
    """Whether every token of a row's answer is the likeliest after those before it.

    One forward pass over the answers, which says the same as greedy decode would.

    Args:
        model: the decoder that read the prompts.
        prompts: what it kept of them.
        answers: token ids, at least one a row.
        questions: as for `generate_many`.

    Raises:
        ConfigError: an answer or a question is empty.
    """
    if any(len(answer) == 0 for answer in answers):
        raise ConfigError("an answer to check has no tokens: leave such samples out")
    asked = _questions(prompts, questions)
    # The last token of an answer is only predicted, never fed.
    tails = [[*q, *a[:-1]] for q, a in zip(asked, answers, strict=True)]
    verdicts = [False] * len(prompts)
    for rows in _batches(model, prompts, room=max(map(len, tails), default=0)):
        found = _check_batch(
            model,
            [prompts[row] for row in rows],
            tails=[tails[row] for row in rows],
            answers=[answers[row] for row in rows],
        )
        for row, verdict in zip(rows, found, strict=True):
            verdicts[row] = verdict
    return verdicts


def first_token_kl(full_V: Tensor, pruned_V: Tensor) -> float:
    """Divergence KL(full || pruned) of two logit vectors' distributions, in nats, at least 0."""
    full_log_V = full_V.double().log_softmax(dim=-1)
    pruned_log_V = pruned_V.double().log_softmax(dim=-1)
    kl = (full_log_V.exp() * (full_log_V - pruned_log_V)).sum()
    return max(0.0, float(kl))


def _questions(
    prompts: Sequence[EvaluatedPrompt], questions: Sequence[Sequence[int]] | None
) -> Sequence[Sequence[int]]:
    if questions is None:
        return [()] * len(prompts)
    if len(questions) != len(prompts) or any(len(question) == 0 for question in questions):
        raise ConfigError(
            "each prompt needs a question of at least one token: the sample's question span is "
            "empty or the lists differ in length; pass no questions where prompts contain them"
        )
    return questions


def _batches(
    model: Transformer, prompts: Sequence[EvaluatedPrompt], *, room: int
) -> Iterator[list[int]]:
    """Rows that are run together: of like length, and no more than fit the budget."""
    budget = _BATCH_BYTES[model.device.type]
    slots = [_slots(prompt) for prompt in prompts]
    token_bytes = 2 * model.config.num_kv_heads * model.config.head_dim * model.dtype.itemsize
    batch: list[int] = []
    # Longest first, so that a batch's first row says how wide it is.
    for row in sorted(range(len(prompts)), key=lambda row: (-slots[row], row)):
        width = slots[batch[0]] if batch else slots[row]
        row_bytes = (width + room * model.config.num_layers) * token_bytes
        if batch and (len(batch) >= _BATCH_ROWS or (len(batch) + 1) * row_bytes > budget):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _slots(prompt: EvaluatedPrompt) -> int:
    """Slots of all layers."""
    return sum(kv.keys_NGD.shape[0] for kv in prompt.layer_kv)


def _generate_batch(
    model: Transformer,
    prompts: Sequence[EvaluatedPrompt],
    *,
    questions: Sequence[Sequence[int]],
    max_tokens: int,
    stop_ids: Collection[int],
) -> list[list[int]]:
    widest = max(map(len, questions))
    dead = [widest - len(question) for question in questions]
    run = TailRun(
        model,
        [PromptKv.of(prompt) for prompt in prompts],
        room=widest + max_tokens,
        dead_slots=dead,
    )
    if widest:
        x_BTE = run.feed(_padded(questions, dead, device=model.device))
        token_B = model.logits(x_BTE[:, -1]).argmax(dim=-1)
    else:
        token_B = torch.stack([prompt.logits_V for prompt in prompts]).argmax(dim=-1)
    stops = torch.tensor(sorted(stop_ids), dtype=torch.int64, device=model.device)
    tokens, ended_B = [token_B], torch.isin(token_B, stops)
    while len(tokens) < max_tokens and not bool(ended_B.all()):
        x_BTE = run.feed(token_B[:, None])
        token_B = model.logits(x_BTE[:, -1]).argmax(dim=-1)
        tokens.append(token_B)
        ended_B = ended_B | torch.isin(token_B, stops)
    return [_until_stop(row, stop_ids) for row in torch.stack(tokens, dim=1).tolist()]


def _until_stop(tokens: Sequence[int], stop_ids: Collection[int]) -> list[int]:
    end = next((i for i, token in enumerate(tokens) if token in stop_ids), len(tokens))
    return list(tokens[:end])


def _check_batch(
    model: Transformer,
    prompts: Sequence[EvaluatedPrompt],
    *,
    tails: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
) -> list[bool]:
    """Compares each answer with the argmax before it, from the prompt's own logits onward."""
    widest = max(map(len, tails))
    dead = [widest - len(tail) for tail in tails]
    best_BT = torch.stack([prompt.logits_V for prompt in prompts]).argmax(dim=-1)[:, None]
    if widest:
        run = TailRun(
            model, [PromptKv.of(prompt) for prompt in prompts], room=widest, dead_slots=dead
        )
        x_BTE = run.feed(_padded(tails, dead, device=model.device))
        longest = max(map(len, answers))
        # One column a token fed before or within the longest answer; the prompt's own comes first.
        columns = [model.logits(x_BE).argmax(dim=-1) for x_BE in x_BTE[:, -longest:].unbind(1)]
        best_BT = torch.cat((best_BT, torch.stack(columns, dim=1)), dim=1)
    predicted = best_BT.tolist()
    return [
        _ends_with(row, answer, after_prompt=len(tail) < len(answer))
        for row, tail, answer in zip(predicted, tails, answers, strict=True)
    ]


def _ends_with(predicted: Sequence[int], answer: Sequence[int], *, after_prompt: bool) -> bool:
    """Whether predictions equal the answer; `after_prompt`: the prompt's own predict its first."""
    if not after_prompt:
        return list(predicted[-len(answer) :]) == list(answer)
    fed = len(answer) - 1
    own = [predicted[0], *(predicted[-fed:] if fed else ())]
    return own == list(answer)


def _padded(tails: Sequence[Sequence[int]], dead: Sequence[int], *, device: torch.device) -> Tensor:
    rows = [[0] * skipped + list(tail) for tail, skipped in zip(tails, dead, strict=True)]
    return torch.tensor(rows, dtype=torch.int64, device=device)

"""What a method that ranks before the main pass may look at, computed when first asked for.

Shapes: T tokens, J steps, H query heads, G KV heads, D head size, L prompt tokens.
"""

import torch
from torch import Tensor

from prefill_service.engine.dense_pass import DensePass
from prefill_service.engine.layer_steps import LayerKv, LayerSteps
from prefill_service.ranking.base import Observation
from shared.errors import ConfigError
from shared.model.transformer import Transformer


class DenseView:
    """Looks through a dense pass of the main model, and runs the draft.

    Args:
        dense: deep enough for the method.
        draft: the second model, if there is one.
    """

    def __init__(self, dense: DensePass, *, draft: Transformer | None) -> None:
        self._dense = dense
        self._draft = draft
        self._draft_seen: dict[int, list[Observation]] = {}

    @property
    def prompt_tokens(self) -> int:
        """L."""
        return self._dense.prompt_tokens

    def last_query(self, layer: int) -> Observation:
        """The last token's query and all keys of a layer."""
        return Observation(q_WHD=self._dense.q_window(layer, 1), k_LGD=self._dense.kv(layer).k_TGD)

    def log_probs(self) -> Tensor:
        """See `DensePass.log_probs`."""
        return self._dense.log_probs()

    def draft_queries(self, steps: int) -> list[Observation]:
        """The draft's queries; it reads the prompt once, whoever asks.

        Raises:
            ConfigError: there is no draft, or it has another vocabulary.
        """
        if steps not in self._draft_seen:
            draft = _checked_draft(self._draft, self._dense.model)
            self._draft_seen[steps] = draft_queries(draft, dense=self._dense, steps=steps)
        return self._draft_seen[steps]


def draft_queries(draft: Transformer, *, dense: DensePass, steps: int) -> list[Observation]:
    """Queries of `steps` greedy steps and prompt keys, by layer of the draft.

    Fewer steps when an end-of-text token is written.
    """
    own = DensePass(
        draft,
        steps=LayerSteps(
            attention=dense.steps.attention,
            config=draft.config,
            chunk_tokens=dense.steps.chunk_tokens,
            check=dense.steps.check,
        ),
        ids_T=dense.ids_T.to(draft.device),
        depth=draft.config.num_layers,
    )
    num_layers, length = draft.config.num_layers, own.prompt_tokens
    queries: list[list[Tensor]] = [[own.q_window(index, 1)] for index in range(num_layers)]
    kv = [own.kv(index) for index in range(num_layers)]
    token = int(own.logits().argmax())
    for step in range(1, steps):
        if token in draft.config.eos_token_ids:
            break
        position = length + step - 1
        token = _draft_step(draft, own, kv=kv, queries=queries, token=token, position=position)
    return [
        Observation(q_WHD=torch.cat(queries[index]), k_LGD=own.kv(index).k_TGD)
        for index in range(num_layers)
    ]


def _draft_step(
    draft: Transformer,
    own: DensePass,
    *,
    kv: list[LayerKv],
    queries: list[list[Tensor]],
    token: int,
    position: int,
) -> int:
    """Feeds one token; appends its queries and keys, and returns the next token."""
    where_1 = torch.tensor([position], device=draft.device)
    rope = draft.rope(where_1, context_tokens=own.prompt_tokens)
    x_1E = draft.embed(torch.tensor([token], device=draft.device))
    for index, layer in enumerate(draft.layers):
        q_1HD, k_1GD, v_1GD = layer.qkv(x_1E, rope)
        queries[index].append(q_1HD.clone())
        k_TGD = torch.cat((kv[index].k_TGD, k_1GD))
        v_TGD = torch.cat((kv[index].v_TGD, v_1GD))
        kv[index] = LayerKv(k_TGD=k_TGD, v_TGD=v_TGD)
        x_1E = layer.finish(x_1E, own.steps.attention.causal(q_1HD, k_TGD, v_TGD))
    return int(draft.logits(x_1E)[0].argmax())


def _checked_draft(draft: Transformer | None, model: Transformer) -> Transformer:
    if draft is None:
        raise ConfigError(
            "this ranking method reads a draft model's attention and there is no draft model: it "
            "runs in evaluations, with a draft; choose another method to serve or to inspect"
        )
    if draft.config.vocab_size != model.config.vocab_size:
        raise ConfigError(
            f"the draft model has {draft.config.vocab_size} tokens of vocabulary, the main model "
            f"{model.config.vocab_size}: they do not share a tokenizer; choose a draft of the "
            "same family"
        )
    return draft

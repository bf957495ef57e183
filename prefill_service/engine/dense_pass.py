"""One pass over a whole prompt that keeps what selections look at; the base of evaluations.

Layers run on every token up to a depth, and everything stays in memory: keys and values, the last
queries, and the inputs of the layers from which pruned runs go on. Any number of runs can start
from it.

Shapes: T tokens, W window rows, H query heads, G KV heads, D head size, E hidden width, V
vocabulary.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from prefill_service.engine.layer_steps import LayerKv, LayerRun, LayerSteps, Share
from shared.model.rope import RopeTable
from shared.model.transformer import Transformer

_LOGIT_ROWS = 512
"""Rows whose logits exist at once."""


class DensePass:
    """Runs on creation.

    Args:
        model: the decoder.
        steps: how its layers are run.
        ids_T: the prompt, int64, on the model's device.
        depth: layers 0..depth-1 run on every token.
        inputs: layers, up to `depth`, whose input is kept.
        window: last tokens whose queries are kept.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        steps: LayerSteps,
        ids_T: Tensor,
        depth: int,
        inputs: Collection[int] = (),
        window: int = 1,
    ) -> None:
        assert 0 <= depth <= model.config.num_layers, "the model has these layers"
        self.model = model
        self.steps = steps
        self.ids_T = ids_T
        self.depth = depth
        self.window = min(window, ids_T.shape[0])
        self.positions_T = torch.arange(ids_T.shape[0], device=model.device)
        self.rope = model.prompt_rope(ids_T.shape[0])
        self._kv: list[LayerKv] = []
        self._q_WHD: list[Tensor] = []
        self._inputs: dict[int, Tensor] = {}
        x_TE = model.embed(ids_T)
        shares = [Share(rows=slice(0, ids_T.shape[0]), window=self.window)]
        for index in range(depth):
            if index in inputs:
                self._inputs[index] = x_TE.clone()
            (ran,) = steps.whole(model.layers[index], x_TE, self.rope, shares=shares)
            self._kv.append(ran.kv)
            self._q_WHD.append(ran.q_WHD)
        self._x_TE = x_TE
        self._inputs[depth] = x_TE

    @property
    def prompt_tokens(self) -> int:
        """T."""
        return int(self.ids_T.shape[0])

    def input(self, layer: int) -> Tensor:
        """Input [T, E] of a layer that was named; never written."""
        return self._inputs[layer]

    def kv(self, layer: int) -> LayerKv:
        """Keys and values of a layer up to `depth`, which itself gives no more than these."""
        if layer == self.depth == len(self._kv):
            decoder_layer, window = self.model.layers[layer], slice(-self.window, None)
            shares = [Share(rows=slice(0, self.prompt_tokens))]
            (kv,) = self.steps.keys_and_values(decoder_layer, self._x_TE, self.rope, shares=shares)
            self._kv.append(kv)
            self._q_WHD.append(decoder_layer.q(self._x_TE[window], self.rope.rows(window)))
        return self._kv[layer]

    def q_window(self, layer: int, window: int) -> Tensor:
        """Queries [W, H, D] of the last `window` tokens of a layer up to `depth`."""
        self.kv(layer)
        return self._q_WHD[layer][self.window - window :]

    def logits(self) -> Tensor:
        """Float32 logits [V] after the prompt; every layer, or all but the last one, has run."""
        last, num_layers = slice(-1, None), self.model.config.num_layers
        if self.depth == num_layers:
            return self.model.logits(self._x_TE[last])[0]
        assert self.depth == num_layers - 1, "the last layer's input is needed"
        layer, kv, x_1E = self.model.layers[-1], self.kv(num_layers - 1), self._x_TE[last]
        attn_1HD = self.steps.attention.causal(
            layer.q(x_1E, self.rope.rows(last)), kv.k_TGD, kv.v_TGD
        )
        return self.model.logits(layer.finish(x_1E, attn_1HD))[0]

    def log_probs(self) -> Tensor:
        """Log-probability of each token after those before it, float32 [T - 1]."""
        assert self.depth == self.model.config.num_layers, "every layer must have run"
        parts = [self._x_TE.new_empty(0, dtype=torch.float32)]
        for start in range(0, self.prompt_tokens - 1, _LOGIT_ROWS):
            rows = slice(start, min(start + _LOGIT_ROWS, self.prompt_tokens - 1))
            targets_B1 = self.ids_T[rows.start + 1 : rows.stop + 1, None]
            logits_BV = self.model.logits(self._x_TE[rows])
            parts.append(logits_BV.log_softmax(dim=-1).gather(1, targets_B1)[:, 0])
        return torch.cat(parts)


def onward(
    dense: DensePass, x_TE: Tensor, *, rope: RopeTable, first: int, window: int
) -> tuple[Tensor, list[LayerRun]]:
    """Layers `first`.. on some of the tokens, as rows of `x_TE`, which is overwritten.

    Args:
        dense: the model and how its layers are run.
        x_TE: input of layer `first` (the last layer's output when there is none left).
        rope: rotations of the rows.
        first: the first layer to run.
        window: last rows whose queries are kept; at least 1.

    Returns:
        The last row of the last layer's output [1, E], and what each layer left.
    """
    layers = dense.model.layers
    shares = [Share(rows=slice(0, x_TE.shape[0]), window=window)]
    seen = [dense.steps.whole(layer, x_TE, rope, shares=shares)[0] for layer in layers[first:-1]]
    if first < len(layers):
        layer, rows, last = layers[-1], slice(-window, None), slice(-1, None)
        (kv,) = dense.steps.keys_and_values(layer, x_TE, rope, shares=shares)
        q_WHD = layer.q(x_TE[rows], rope.rows(rows))
        attn_1HD = dense.steps.attention.causal(q_WHD[last], kv.k_TGD, kv.v_TGD)
        x_TE = layer.finish(x_TE[last], attn_1HD)
        seen.append(LayerRun(kv=kv, q_WHD=q_WHD))
    return x_TE[-1:], seen

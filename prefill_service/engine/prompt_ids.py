"""The token ids of a prompt, from the host to the device.

Shapes: T tokens of a prompt.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shared.errors import InvalidRequestError
from shared.model.staging import sent_to
from shared.model.transformer import Transformer


def checked_ids(token_ids: Sequence[int], model: Transformer) -> Tensor:
    """Token ids as int64 [T] on the model's device.

    An array of integers is taken as it lies in memory; another sequence is walked through, which
    takes half a millisecond of a long prompt whose ids nothing looked at for a while.

    Raises:
        InvalidRequestError: one is outside the vocabulary.
    """
    vocab_size = model.config.vocab_size
    try:
        # An array takes a list in several times faster than a tensor does.
        ids = np.asarray(token_ids if isinstance(token_ids, array) else array("q", token_ids))
    except OverflowError:
        raise _outside(token_ids, vocab_size=vocab_size) from None
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise _outside(token_ids, vocab_size=vocab_size)
    return sent_to(torch.from_numpy(ids.astype(np.int64, copy=False)), model.device)


def _outside(token_ids: Sequence[int], *, vocab_size: int) -> InvalidRequestError:
    bad = next(i for i in token_ids if not 0 <= i < vocab_size)
    return InvalidRequestError(
        f"token id {bad} is outside the vocabulary of {vocab_size}: the ids come from another "
        "model's tokenizer; tokenize with this model's own",
        param="prompt",
    )

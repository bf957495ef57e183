"""The text that benchmarks read: real prose, since constant ids make degenerate scores."""

import pydoc_data.topics

from shared.errors import ConfigError
from shared.model.weights import LoadedModel
from shared.tokenizer.tokenizer import Tokenizer


def real_prompt(loaded: LoadedModel, *, tokens: int, room: int = 0) -> list[int]:
    """The first `tokens` token ids of the topics of Python's own help.

    Args:
        loaded: the model whose tokenizer and context limit apply.
        tokens: length of the prompt.
        room: further tokens that must fit the context after it.

    Raises:
        ConfigError: the context or the text is too short.
    """
    limit = loaded.model.config.max_position
    if tokens < 1 or tokens + room > limit:
        raise ConfigError(
            f"a prompt of {tokens} tokens and {room} after it do not fit: the model's context "
            f"holds 1 to {limit}; choose other lengths"
        )
    text = "\n".join(pydoc_data.topics.topics.values())
    token_ids = Tokenizer.from_folder(loaded.folder).encode(text)[:tokens]
    if len(token_ids) < tokens:
        raise ConfigError(
            f"the benchmark's text has only {len(token_ids)} tokens: ask for no more than that"
        )
    return token_ids

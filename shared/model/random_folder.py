"""A random model as a standard folder, tokenizer included: `tandem model random` and the tests."""

import json
import pydoc_data.topics
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from shared.errors import ModelLoadError
from shared.model.config import ModelConfig
from shared.model.drawn import DrawnWeights
from shared.model.folder import fresh_folder, write_drawn, write_model
from shared.model.random import random_tensors
from shared.model.state import DTYPES
from shared.model.tokenizer_build import CHATML, Vocabulary, tokenizer_config, tokenizer_json

_SPECIALS = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
_SMALLEST = 256 + len(_SPECIALS)


def save_random_model(
    target: Path, config: ModelConfig, *, seed: int = 0, dtype: str = "float32"
) -> Path:
    """Writes the model of `random_model(config, seed=seed)` and a tokenizer to the folder `target`.

    Raises:
        ModelLoadError: the vocabulary is too small to hold every byte.
    """
    _require_room(config)
    tensors = random_tensors(config, seed=seed)
    tokenizer = _train(config.vocab_size)
    with fresh_folder(target) as folder:
        write_model(
            folder,
            config=config,
            tensors={name: tensor.to(DTYPES[dtype]) for name, tensor in tensors.items()},
            tokenizer_json=tokenizer_json(tokenizer),
            tokenizer_config=tokenizer_config(_vocabulary(config)),
        )
    return target


def save_drawn_model(target: Path, config: ModelConfig, *, seed: int = 0) -> Path:
    """Writes the folder of a model whose weights every worker draws, with a tokenizer.

    Every id has a text: what training does not fill is filled with tokens that no text makes.

    Raises:
        ModelLoadError: the vocabulary is too small to hold every byte.
        ConfigError: no weights can be drawn from such a seed.
    """
    _require_room(config)
    drawn = DrawnWeights(seed=seed)
    with fresh_folder(target) as folder:
        write_drawn(
            folder,
            config=config,
            drawn=drawn.to_json(),
            tokenizer_json=tokenizer_json(_filled(_train(config.vocab_size), config.vocab_size)),
            tokenizer_config=tokenizer_config(_vocabulary(config)),
        )
    return target


def _require_room(config: ModelConfig) -> None:
    if config.vocab_size < _SMALLEST:
        raise ModelLoadError(
            f"a random model of {config.vocab_size} tokens has no room for its {_SMALLEST} bytes "
            "and special tokens; "
            "ask for a larger vocabulary"
        )


def _vocabulary(config: ModelConfig) -> Vocabulary:
    return Vocabulary(
        tokens=_SPECIALS,
        merges=(),
        specials=range(len(_SPECIALS)),
        split="gpt-2",
        bos=0,
        eos=1,
        chat_template=CHATML,
        model_max_length=config.max_position,
    )


def _filled(tokenizer: Tokenizer, size: int) -> Tokenizer:
    """The tokenizer with unreachable tokens ` #ID` up to `size`; it encodes as before."""
    raw = json.loads(tokenizer.to_str())
    vocab = raw["model"]["vocab"]
    vocab |= {f"\u0120#{index}": index for index in range(len(vocab), size)}
    return Tokenizer.from_str(json.dumps(raw))


def _train(vocab_size: int) -> Tokenizer:
    """A byte-level BPE of at most `vocab_size` tokens, learnt from Python's own help texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    topics = sorted(pydoc_data.topics.topics.items())
    tokenizer.train_from_iterator((text for _, text in topics[:40]), trainer)
    return tokenizer

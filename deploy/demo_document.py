"""The document of `tandem demo`: Python's own documentation, which every machine has."""

import sys
from pydoc_data.topics import topics

from shared.tokenizer.tokenizer import Tokenizer

TOPIC = "debugger"
QUESTION = 'What is "pdb"?'


def demo_prompt(tokenizer: Tokenizer, *, document_tokens: int) -> str:
    """The document, cut after `document_tokens` tokens, and a question whose answer is in it."""
    ids = tokenizer.encode(topics[TOPIC])[:document_tokens]
    document = tokenizer.decode(ids).rstrip("\ufffd")
    return f"Read this part of Python's documentation.\n\n{document}\n\nQuestion: {QUESTION}"


def document_name() -> str:
    """What the document is, for the screen."""
    return (
        f"pydoc_data.topics[{TOPIC!r}] of Python {sys.version_info.major}.{sys.version_info.minor}"
    )

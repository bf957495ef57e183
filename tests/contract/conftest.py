"""The contract: other people's clients in front of a running gateway."""

from pathlib import Path

import pytest

from tests.support.tiny_tokenizer import write_tokenizer_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer and a chat template; read it, never change it."""
    return write_tokenizer_folder(tmp_path_factory.mktemp("tokenizer"))

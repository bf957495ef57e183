"""Writers of task prompts; for the tiny byte-level tokenizer a token is about a character."""

from pathlib import Path

import pytest

from loadtest.quality.tasks.prompt import PromptWriter
from shared.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import write_tokenizer_folder


@pytest.fixture(scope="session")
def writer(tmp_path_factory: pytest.TempPathFactory) -> PromptWriter:
    """With a chat template."""
    folder = write_tokenizer_folder(tmp_path_factory.mktemp("writer") / "tiny")
    return PromptWriter(Tokenizer.from_folder(folder))


@pytest.fixture(scope="session")
def plain_writer(tmp_path_factory: pytest.TempPathFactory) -> PromptWriter:
    """Without a chat template."""
    folder = tmp_path_factory.mktemp("writer") / "plain"
    return PromptWriter(Tokenizer.from_folder(write_tokenizer_folder(folder, chat_template=None)))


@pytest.fixture(scope="session")
def real_writer(smollm2_dir: Path) -> PromptWriter:
    """With the embedded model's tokenizer."""
    return PromptWriter(Tokenizer.from_folder(smollm2_dir))

from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.sparsity.records import open_store, read_facts
from loadtest.sparsity.settings import StudySettings
from loadtest.sparsity.study import Setup, Study
from shared.model.attention import TorchAttention
from shared.model.transformer import Transformer
from shared.tokenizer.tokenizer import Tokenizer
from shared.types.methods import PruningParams, SparsityParams

SMALL = StudySettings(
    parts=("teacher",),
    policies=("delta", "random", "recency"),
    budgets=(6,),
    windows=1,
    context=208,
    steps=12,
    sample_every=4,
    needle_lengths=(640,),
    needle_answers=1,
    needle_prompts=1,
    long_budgets=(6,),
    long_context=64,
    long_steps=200,
    generation_tokens=40,
    generation_context=200,
    generation_pages=6,
    strip_steps=10,
    ablation_steps=6,
    ablation_pages=8,
    pruned_pages=3,
    ablation_answers=1,
)


@pytest.fixture(scope="session")
def setup(tiny_model: Transformer, tiny_model_dir: Path) -> Setup:
    return Setup(
        model=tiny_model,
        attention=TorchAttention(),
        tokenizer=Tokenizer.from_folder(tiny_model_dir),
        pruning=PruningParams(pruning_layer=3, deferred_layers=2, aggregation_window=2),
        sparsity=SparsityParams(full_layers=(0, 1, 3), page_budget=6, recency_pages=2),
    )


@pytest.fixture
def run(setup, tmp_path):
    """Runs a study in the test's folder; gives whether it ended, its facts and what it said."""

    def run_study(**changes):
        said = []

        def progress(part, *, done, total):
            said.append((part, done, total))

        finished = Study(
            setup,
            settings=replace(SMALL, **changes),
            store=open_store(tmp_path, resume=True),
            run=0,
            progress=progress,
        ).run()
        return finished, read_facts(tmp_path), said

    return run_study

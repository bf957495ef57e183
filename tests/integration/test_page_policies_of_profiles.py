"""Page policies that a profile chooses: refused at a worker's start, or followed."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.model.random_folder import save_random_model
from tests.support.decode_server import decode_server, write_profile
from tests.support.full_stack import running_stack
from tests.support.prefill_worker import prefill_worker
from tests.support.tiny_model import tiny_config


def profile_with(folder: Path, policy: str) -> Path:
    """The tests' profile with another policy."""
    path = write_profile(folder)
    entry = f'policy = {{ value = "{policy}", source = "a test" }}'
    path.write_text(f"{path.read_text(encoding='utf-8')}{entry}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("role", [decode_server, prefill_worker])
async def test_a_worker_with_an_unknown_policy_in_its_profile_does_not_start(
    tiny_model_dir: Path, tmp_path: Path, role: Callable[..., AbstractAsyncContextManager[object]]
) -> None:
    path = profile_with(tmp_path, "dleta")
    with pytest.raises(ConfigError, match=r"'dleta' is unknown; known: dense, delta"):
        async with role(tiny_model_dir, profile=str(path)):
            pass


async def test_a_policy_that_does_not_fit_the_model_is_refused_at_start(tmp_path: Path) -> None:
    shallow = save_random_model(tmp_path / "shallow", replace(tiny_config(), num_layers=4), seed=7)
    path = profile_with(tmp_path, "tidal")
    with pytest.raises(ConfigError, match="4 layers is too shallow"):
        async with decode_server(shallow, path):
            pass


async def test_what_only_the_profile_decides_is_refused_before_any_prefill_too(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    path = profile_with(tmp_path, "quest")
    async with running_stack(tiny_model_dir, path) as stack:
        body = {"prompt": "A prompt.", "max_tokens": 2, "ignore_eos": True}
        answer = await stack.http.post("/v1/completions", json=body)
        assert answer.json()["tandem"]["pages"]["policy"] == "quest"
        before = stack.prefill.runner.runs
        wrong = {**body, "tandem": {"page_heads": "kv_head"}}
        response = await stack.http.post("/v1/completions", json=wrong)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "tandem.page_heads"
        assert stack.prefill.runner.runs == before

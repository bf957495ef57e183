"""Ranking methods beside CLAA through a real prefill and a real decode worker over gRPC."""

from pathlib import Path

import pytest

from decode_service.engine.attention import TorchDecodeAttention
from decode_service.engine.inspect import inspect_pages
from protos.tandem.v1 import common_pb2, decode_pb2, decode_pb2_grpc, prefill_pb2
from shared.errors import ConfigError
from shared.model.profile import load_profile
from shared.model.transformer import Transformer
from shared.rpc.channel import open_channel
from tests.support.decode_server import decode_server
from tests.support.pair import first_token, hand_over, prefill
from tests.support.prefill_worker import kinds, prefill_worker, prompt_ids, prompt_request

PROFILE = """
source = "for tests"
[pruning]
pruning_layer = {{ value = 3, source = "test" }}
deferred_layers = {{ value = {whole}, source = "test" }}
aggregation_window = {{ value = 2, source = "test" }}
kv_select = {{ value = "layer", source = "test" }}
keep_rate = {{ value = 0.4, source = "test" }}
ranker = {{ value = "{ranker}", source = "test" }}
{more}
[sparsity]
full_layers = {{ value = [0, 1, 3], source = "test" }}
page_budget = {{ value = 6, source = "test" }}
recency_pages = {{ value = 2, source = "test" }}
"""
SMALLER = 'kv_rate = { value = 0.2, source = "test" }'
SEEDED = 'seed = { value = 5, source = "test" }'
METHODS = [
    ("claa", 2, SMALLER),
    ("fastkv", 0, ""),
    ("fastkv", 0, SMALLER),
    ("snapkv", 0, ""),
    ("random", 2, SEEDED),
    ("recency", 0, SMALLER),
]
MAX_TOKENS = 10


def profile_of(folder: Path, ranker: str, whole: int, more: str = "") -> Path:
    path = folder / "method.toml"
    path.write_text(PROFILE.format(ranker=ranker, whole=whole, more=more), encoding="utf-8")
    return path


@pytest.mark.parametrize(("ranker", "whole", "more"), METHODS)
async def test_a_method_is_served_as_it_is_inspected(
    tiny_model: Transformer,
    tiny_model_dir: Path,
    tmp_path: Path,
    ranker: str,
    whole: int,
    more: str,
) -> None:
    path, ids = profile_of(tmp_path, ranker, whole, more), prompt_ids(150, seed=4)
    profile = load_profile(str(path), config=tiny_model.config)
    captured = prefill(tiny_model, ids, profile.pruning)
    expected = inspect_pages(
        tiny_model,
        attention=TorchDecodeAttention(),
        prompt=hand_over(captured),
        first_token=first_token(captured),
        sparsity=profile.sparsity,
        max_tokens=MAX_TOKENS,
    )
    async with (
        decode_server(tiny_model_dir, path) as decode,
        prefill_worker(tiny_model_dir, profile=str(path)) as worker,
    ):
        target = prefill_pb2.DecodeTarget(worker_id="d", address=decode.address)
        stop = common_pb2.StopConditions(max_tokens=MAX_TOKENS)
        request = prompt_request(ids, [], targets=[target], stop=stop)
        events = await worker.run(request)
        assert kinds(events)[-1] == "PrefillSealed"
        started = next(e for e in events if type(e).__name__ == "PrefillStarted")
        assert started.pruning.ranker == ranker
        assert started.pruning.HasField("kv_tokens") == (more == SMALLER)
        tokens = [events[-2].tokens[0].token_id]
        channel = open_channel(decode.address)
        call = decode_pb2_grpc.DecodeServiceStub(channel).Decode(
            decode_pb2.DecodeRequest(
                handoff=request.handoff,
                first_token=tokens[0],
                sampling=request.sampling,
                stop=request.stop,
            )
        )
        async for response in call:
            tokens += [token.token_id for token in response.tokens.tokens]
        await channel.close()
        await worker.stub.Release(prefill_pb2.ReleaseRequest(handoff=request.handoff))
    assert tokens == expected["token_ids"]


@pytest.mark.parametrize(
    ("ranker", "whole", "more", "says"),
    [
        ("fastkv", 2, "", "deferred_layers to 0"),
        ("gemfilter", 0, "", "before the main pass"),
        ("oracle", 2, "", "evaluations"),
        ("clea", 2, "", "did you mean 'claa'"),
        ("claa", 2, 'kv_rate = { value = 0.5, source = "test" }', "third length"),
    ],
)
async def test_a_worker_refuses_at_start_what_it_cannot_serve(
    tiny_model_dir: Path, tmp_path: Path, ranker: str, whole: int, more: str, says: str
) -> None:
    path = profile_of(tmp_path, ranker, whole, more)
    with pytest.raises(ConfigError, match=says):
        async with prefill_worker(tiny_model_dir, profile=str(path)):
            pass

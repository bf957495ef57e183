"""A worker whose settings ask for faults makes them, and says so wherever anybody looks."""

from pathlib import Path

import httpx
import pytest

from prefill_service.app import PrefillApp
from prefill_service.config import PrefillConfig
from protos.tandem.v1 import control_pb2, control_pb2_grpc
from shared.errors import ConfigError
from tests.support.full_stack import running_stack

PLAN = "kill@ack=0.0001, duplicate@middle=1, seed=7"
BODY = {"prompt": "fox " * 70, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


async def test_it_is_shown_everywhere_and_the_answers_are_right(
    tiny_model_dir: Path, profile: Path
) -> None:
    texts = []
    for settings in ({}, {"faults": tuple(PLAN.split(", "))}):
        async with running_stack(tiny_model_dir, profile, prefill=settings) as stack:
            answer = (await stack.http.post("/v1/completions", json=BODY)).json()
            texts.append(answer["choices"][0]["text"])
            said = PLAN if settings else ""
            workers = (await stack.http.get("/health")).json()["workers"]
            assert [worker["faults"] for worker in workers] == [said, ""]
            async with httpx.AsyncClient() as http:
                address = stack.prefill.app.admin_address
                ready = (await http.get(f"http://{address}/health/ready")).json()
            assert ready["status"] == "ready"
            assert ready["detail"] == (f"faults on purpose: {PLAN}" if settings else "")
            control = control_pb2_grpc.ControlServiceStub(stack.prefill.channel)
            assert (await control.GetInfo(control_pb2.GetInfoRequest())).faults == said
            made = stack.prefill.app.registry.get_sample_value(
                "tandem_transfer_faults_total", {"fault": "duplicate", "moment": "middle"}
            )
            assert made == (1 if settings else None)
    assert texts[0] == texts[1]


async def test_a_plan_that_cannot_be_read_ends_the_start(tiny_model_dir: Path) -> None:
    config = PrefillConfig(port=0, admin_port=0, model=str(tiny_model_dir), faults=("kill@noon",))
    app = PrefillApp(config)
    with pytest.raises(ConfigError, match="moments are hello, grant"):
        await app.start()
    await app.close()

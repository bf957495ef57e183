"""The flags of a run, the same for Locust and for `python -m loadtest.load run`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.load.overrides import Overrides
from loadtest.load.settings import Api, LoadSettings
from loadtest.load.workloads import WORKLOADS, Profile
from shared.errors import ConfigError
from shared.types.options import Mode

API_KEY_VARIABLE = "TANDEM_API_KEY"
"""Holds the key, so that no command line shows it."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds every flag but --host, which Locust has already."""
    about = f"The API key is taken from {API_KEY_VARIABLE}."
    add = parser.add_argument_group("load", about).add_argument
    add("--out", type=Path, default=Path("load-results"), help="folder that takes the results")
    add("--api", choices=list(Api), default=Api.COMPLETIONS, type=Api, help="how requests are put")
    add("--grpc", default="", metavar="HOST:PORT", help="gRPC server, for --api grpc only")
    add("--model", default="", help="served model; the server's own")
    add("--workload", choices=list(WORKLOADS), default="chat", help="which mix of requests")
    add("--sizes", dest="size_profile", choices=list(Profile), default=Profile.CPU, type=Profile,
        help="prompt and answer sizes, and bounds, for a server on this hardware")  # fmt: skip
    add("--rate", type=float, default=1.0, help="requests a second; arrivals are open loop")
    add("--seconds", type=float, default=30.0, help="how long requests begin")
    add("--ramp", default="", metavar="RATE:SECONDS,...", help="stages instead of one rate")
    add("--trace", type=Path, help="recorded requests, for --workload trace; JSON lines")
    add("--burst", type=float, default=1.0, metavar="CV",
        help="variation of the gaps: 1 is Poisson, 2 to 4 are bursts")  # fmt: skip
    add("--mode", choices=[mode.value for mode in Mode],
        help="methods that every request asks for; the profile's own")  # fmt: skip
    add("--keep-rate", type=float, help="share of prompt tokens kept, instead of the profile's")
    add("--page-budget", type=int, help="pages read by a layer, instead of the profile's")
    add("--closed", type=int, default=0, metavar="CLIENTS",
        help="a closed loop of so many clients, to find the largest concurrency")  # fmt: skip
    add("--seed", type=int, default=0, help="of arrivals, sizes and prompts")
    add("--slo", action="append", default=[], metavar="CLASS:ttft=S,tpot=S[,gap=S]",
        help="bounds of a class instead of the profile's; may be repeated")  # fmt: skip
    add("--attainment", type=float, default=0.95, help="share that must be served in time")
    add("--max-lag", type=float, default=0.05,
        help="share of the schedule that the generator may be behind")  # fmt: skip
    add("--max-in-flight", type=int, default=512, metavar="REQUESTS",
        help="more requests under way than this end the run: it is past hope")  # fmt: skip
    add("--keep-going", action="store_true", help="a hopeless run is not ended early")
    add("--request-timeout", type=float, default=300.0, help="seconds of one request")
    add("--drain", type=float, default=60.0, help="seconds for answers after the last arrival")
    add("--no-report", action="store_true", help="JSON only, no figures")


def settings_of(given: Mapping[str, Any]) -> LoadSettings:
    """The settings that flags describe.

    Raises:
        ConfigError: they do not fit together.
    """
    if not given["host"]:
        raise ConfigError("no server was named: --host is missing; give --host http://HOST:PORT")
    return LoadSettings(
        host=given["host"].rstrip("/"),
        out=given["out"],
        api=given["api"],
        grpc=given["grpc"],
        model=given["model"],
        workload=given["workload"],
        profile=given["size_profile"],
        rate=given["rate"],
        seconds=given["seconds"],
        stages=given["ramp"],
        variation=given["burst"],
        trace=given["trace"],
        closed_users=given["closed"],
        seed=given["seed"],
        slo=tuple(given["slo"]),
        attainment=given["attainment"],
        max_lag=given["max_lag"],
        overrides=Overrides(
            mode=None if given["mode"] is None else Mode(given["mode"]),
            keep_rate=given["keep_rate"],
            page_budget=given["page_budget"],
        ),
        max_in_flight=given["max_in_flight"],
        keep_going=given["keep_going"],
        request_timeout_s=given["request_timeout"],
        drain_s=given["drain"],
        figures=not given["no_report"],
    )

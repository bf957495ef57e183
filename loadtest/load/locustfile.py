"""The wiring of a run: `locust -f loadtest/load/locustfile.py --headless --host URL`."""

import os
import shlex
import sys
from argparse import ArgumentParser
from functools import partial

from locust import events
from locust.env import Environment
from locust.runners import LocalRunner

from loadtest.load.courses import Client
from loadtest.load.events import fire_events
from loadtest.load.flags import API_KEY_VARIABLE, add_flags, settings_of
from loadtest.load.generator import Generator
from loadtest.load.prompts import PromptMaker
from loadtest.load.rest import RestClient
from loadtest.load.results import check_figures, write_results
from loadtest.load.rpc import GrpcClient, secure_url
from loadtest.load.served import Served, ask_server
from loadtest.load.settings import Api, LoadSettings
from loadtest.load.users import LoadShape, LoadUser
from loadtest.machine import machine_facts
from shared.config.exit_codes import ExitCode, exit_code_for
from shared.errors import ConfigError, TandemError

__all__ = ["LoadShape", "LoadUser"]


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _flags(parser: ArgumentParser, **_: object) -> None:
    add_flags(parser)


@events.init.add_listener  # type: ignore[untyped-decorator]
def _begin(environment: Environment, **_: object) -> None:
    """Locust only logs what a listener raises; a run that cannot begin ends the process."""
    try:
        _wire(environment)
    except TandemError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(exit_code_for(error))


def _wire(environment: Environment) -> None:
    if not isinstance(environment.runner, LocalRunner):
        raise ConfigError(
            "the results of several Locust processes cannot be joined: --master, --worker or "
            "--processes was given; start one process"
        )
    assert environment.parsed_options is not None, "Locust has read its flags"
    flags = vars(environment.parsed_options)
    if not (flags["headless"] or flags["autostart"]):
        raise ConfigError(
            "a run begins with the process and is one: Locust's page would start several; give "
            "--headless, or --autostart to watch on the page"
        )
    settings = settings_of(flags)
    check_figures(wanted=settings.figures)
    machine = machine_facts(command=shlex.join(["locust", *sys.argv[1:]]))
    api_key = os.environ.get(API_KEY_VARIABLE, "")
    served = ask_server(settings.host, model=settings.model, api_key=api_key)
    generator = Generator(
        settings,
        client=_client(settings, served, api_key),
        prompts=PromptMaker(served.words, seed=settings.seed),
        listener=partial(fire_events, environment),
    )
    LoadUser.generator = generator

    def finish(**_: object) -> None:
        environment.process_exit_code = ExitCode.FAILURE  # Locust only logs what a listener raises
        environment.process_exit_code = write_results(
            generator.record, settings, server=served.to_json(), machine=machine
        )

    environment.events.quitting.add_listener(finish)  # type: ignore[no-untyped-call]


def _client(settings: LoadSettings, served: Served, api_key: str) -> Client:
    if settings.api is Api.GRPC:
        return GrpcClient(
            settings.grpc,
            secure=secure_url(settings.host),
            model=served.model,
            timeout_s=settings.request_timeout_s,
            overrides=settings.overrides,
            api_key=api_key,
        )
    return RestClient(
        settings.host,
        api=settings.api,
        model=served.model,
        timeout_s=settings.request_timeout_s,
        overrides=settings.overrides,
        api_key=api_key,
    )

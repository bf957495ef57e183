"""The `tandem` command; each sub-command imports what it needs when it runs, so help is quick."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli_bench import bench_app
from deploy.cli_bench_pair import pair
from deploy.cli_calibrate import calibrate
from deploy.cli_eval import eval_app
from deploy.cli_eval_sparse import sparse
from deploy.cli_inspect import inspect_app
from deploy.cli_key import key_app
from deploy.cli_plan import plan_app
from deploy.cli_top import top
from shared.config.exit_codes import exit_code_for
from shared.errors import TandemError

_EXIT_CODES = (
    "Exit codes: 0 ok, 1 failure, 2 usage, 3 config, 4 no device, 5 port busy, 6 model load."
)
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
_URL = "http://127.0.0.1:8000"

app = typer.Typer(
    name="tandem",
    help="LLM serving in two halves: pruned prefill (CLAA), page-sparse decode (DELTA), "
    "and an OpenAI-compatible gateway.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
model_app = typer.Typer(no_args_is_help=True, help="The models on this machine.")
config_app = typer.Typer(no_args_is_help=True, help="Effective settings.")
app.add_typer(model_app, name="model")
app.add_typer(inspect_app, name="inspect")
app.add_typer(bench_app, name="bench")
app.add_typer(eval_app, name="eval")
app.add_typer(config_app, name="config")
app.add_typer(key_app, name="key")
app.add_typer(plan_app, name="plan")
app.command()(calibrate)
app.command()(top)
eval_app.command("sparse")(sparse)
bench_app.command("pair")(pair)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Url = Annotated[str, typer.Option(help="Base URL of the gateway.")]
CacheDir = Annotated[
    Path | None,
    typer.Option(help="Model cache; TANDEM_CACHE_DIR or ~/.cache/tandem when not given."),
]


def main() -> None:
    """Runs the command line; expected errors become one line and an exit code."""
    try:
        app()
    except TandemError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(exit_code_for(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _finish(code: int) -> None:
    if code:
        raise typer.Exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        from shared.config.version import package_version

        print(f"tandem {package_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the command itself."""
    assert not version, "the callback has ended the command"


def _role_command(role: str, help_text: str) -> None:
    def run(context: typer.Context) -> None:
        from deploy.launch import exec_role
        from deploy.settings import check_settings

        check_settings(role, context.args)
        exec_role(role, context.args)

    app.command(role, context_settings=_PASS_ON, help=help_text)(run)


_role_command("gateway", "The gateway alone; `tandem gateway --help` lists its settings.")
_role_command("prefill", "One prefill worker; `tandem prefill --help` lists its settings.")
_role_command("decode", "One decode worker; `tandem decode --help` lists its settings.")


@app.command(context_settings=_PASS_ON)
def up(context: typer.Context) -> None:
    """Every role on this machine until Ctrl-C; `tandem up --help` lists the settings."""
    from deploy.local import run_up

    _finish(run_up(context.args))


@app.command()
def demo(
    model: Annotated[str, typer.Option(help="Catalog name, folder or GGUF file.")] = "smollm2",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 64,
    keep_running: Annotated[
        bool, typer.Option(help="Leave the servers up after the comparison, until Ctrl-C.")
    ] = False,
    document_tokens: Annotated[
        int, typer.Option(min=600, help="Length of the document, in tokens; less is quicker.")
    ] = 3300,
    cache_dir: CacheDir = None,
) -> None:
    """Asks one question over a long document, with both methods and with neither."""
    from deploy.demo import DemoSettings, run_demo

    settings = DemoSettings(
        model=model,
        max_tokens=max_tokens,
        keep_running=keep_running,
        document_tokens=document_tokens,
        cache_dir=cache_dir,
    )
    _finish(run_demo(settings))


@app.command()
def chat(
    message: Annotated[
        str | None, typer.Argument(help="One message; none opens a dialogue.")
    ] = None,
    url: Url = _URL,
    model: Annotated[str, typer.Option(help="Served model; the first one when empty.")] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    mode: Annotated[str, typer.Option(help="auto, full, prune, sparse or both.")] = "auto",
) -> None:
    """Talks to a running gateway and streams the answer.

    With API keys, TANDEM_API_KEY must hold one.
    """
    from deploy.chat import ChatSettings, run_chat

    settings = ChatSettings(
        url=url,
        model=model,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
        mode=mode,
    )
    _finish(run_chat(message, settings=settings))


@app.command()
def doctor(
    as_json: Json = False,
    ports: Annotated[
        bool,
        typer.Option(
            help="Check that the default ports are free; not useful beside running servers."
        ),
    ] = True,
    cache_dir: CacheDir = None,
) -> None:
    """Checks this machine and names what would not work; non-zero when a check fails.

    JSON keys: ok, checks [{name, status (ok, note, fail), detail, remedy}].
    """
    from deploy.doctor import run_doctor

    _finish(run_doctor(as_json=as_json, with_ports=ports, cache_dir=cache_dir))


@app.command()
def health(
    role: Annotated[str, typer.Option(help="gateway, prefill or decode.")] = "gateway",
    address: Annotated[
        str, typer.Option(help="host:port; empty takes it from the settings of the role.")
    ] = "",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Asks a role whether it is ready; exit code 0 only when it is.

    JSON keys: role, address, ready, detail.
    """
    from deploy.health import run_health

    _finish(run_health(role=role, address=address, timeout_s=timeout, as_json=as_json))


@app.command()
def version(
    full: Annotated[bool, typer.Option("--full", help="Libraries and platform as well.")] = False,
    as_json: Json = False,
) -> None:
    """Prints the version."""
    from deploy.version import full_version
    from shared.config.version import package_version

    facts = full_version() if full else {"tandem": package_version()}
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name} {value}")


@config_app.command("show")
def config_show(
    role: Annotated[str, typer.Option(help="gateway, prefill, decode, up or all.")] = "all",
    origin: Annotated[bool, typer.Option("--origin", help="Where each value comes from.")] = False,
    config: Annotated[Path | None, typer.Option(help="Settings file in TOML.")] = None,
    as_json: Json = False,
) -> None:
    """Prints the effective settings of the roles; secrets are masked.

    JSON: role -> field -> {value, origin}.
    """
    from deploy.settings import show_settings

    show_settings(role=role, origin=origin, file=config, as_json=as_json)


@model_app.command("pull")
def model_pull(
    name: Annotated[str, typer.Argument(help="Catalog name, for example smollm2.")],
    cache_dir: CacheDir = None,
) -> None:
    """Fetches a catalog model into a standard folder, unless it is there."""
    from deploy.models import pull_model

    pull_model(name, cache_dir=cache_dir)


@model_app.command("random")
def model_random(
    target: Annotated[Path, typer.Argument(help="Folder to write; --model takes it.")],
    shape: Annotated[
        str, typer.Option(help="Whose shape: llama-3.1-8b, tiny, and others; an unknown one lists.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="What the weights are drawn from.")] = 0,
) -> None:
    """Makes a model of a known shape with random weights, to measure speed with.

    The folder holds the shape, a tokenizer and a seed: workers draw the weights on their own device
    in seconds. Two workers draw the same ones from one seed on devices of one kind with one version
    of PyTorch, and refuse to be a pair otherwise. The text of such a model is noise.
    """
    from deploy.models import write_random

    write_random(target, shape=shape, seed=seed)


@model_app.command("list")
def model_list(cache_dir: CacheDir = None, as_json: Json = False) -> None:
    """Lists the catalog and what is on this machine."""
    from deploy.models import list_models

    list_models(cache_dir=cache_dir, as_json=as_json)

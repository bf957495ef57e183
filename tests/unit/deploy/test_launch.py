import os
import subprocess
import sys

from deploy.launch import (
    ALLOCATOR_VARIABLES,
    ROLE_PACKAGES,
    role_command,
    role_environment,
    supervised_command,
)


def test_allocator_variables_are_added_and_set_ones_stay():
    environment = role_environment({"MALLOC_TOP_PAD_": "1", "PATH": "/bin"})
    assert environment["MALLOC_TOP_PAD_"] == "1"
    assert environment["PATH"] == "/bin"
    assert set(environment) >= set(ALLOCATOR_VARIABLES)


def test_role_command_keeps_the_current_folder_off_the_path():
    assert role_command("decode", ["--port", "0"])[1:] == [
        "-P",
        "-m",
        "deploy.decode_worker",
        "--port",
        "0",
    ]
    assert role_command("prefill", [])[1:] == ["-P", "-m", "prefill_service"]
    assert supervised_command("decode", ["--port", "0"])[-3:] == ["decode", "--port", "0"]


def test_every_role_answers_help_through_the_launcher(tmp_path):
    for role in ROLE_PACKAGES:
        result = subprocess.run(
            supervised_command(role, ["--help"]),
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert f"tandem {role}" in result.stdout
        assert "--model" in result.stdout


def test_help_of_the_command_is_light():
    code = (
        "import sys, deploy.cli as cli, typer.main; typer.main.get_command(cli.app); "
        "heavy = {'torch', 'transformers', 'grpc', 'httpx', 'numpy'} & set(sys.modules); "
        "print(sorted(heavy))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

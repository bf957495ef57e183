import dataclasses
from pathlib import Path

import pytest

from deploy.cluster import gateway_spec, threads_per_worker, worker_specs
from deploy.config import FREE_PORTS, UpConfig
from deploy.local import run_up
from deploy.ready import ReadyLine
from deploy.role_process import error_of_exit
from shared.config.exit_codes import exit_code_for
from shared.errors import ConfigError


def flag(spec, name):
    return spec.arguments[spec.arguments.index(name) + 1]


def line(role, address):
    return ReadyLine(role=role, worker_id=role, admin="", address=address)


def test_ports_count_up_per_worker():
    specs = worker_specs(UpConfig(prefill=2, decode=2), cores=4)
    assert [flag(spec, "--port") for spec in specs] == ["8101", "8102", "8201", "8202"]
    assert [flag(spec, "--admin-port") for spec in specs] == ["9100", "9101", "9200", "9201"]
    assert [spec.name for spec in specs] == ["prefill-0", "prefill-1", "decode-0", "decode-1"]


def test_workers_take_the_gpus_of_their_role_in_turn():
    config = UpConfig(prefill=3, decode=2, prefill_gpus=(0, 2), decode_gpus=(1,))
    devices = [flag(spec, "--device") for spec in worker_specs(config, cores=8)]
    assert devices == ["cuda:0", "cuda:2", "cuda:0", "cuda:1", "cuda:1"]
    plain, _ = worker_specs(UpConfig(decode_gpus=(0,)), cores=8)
    assert "--device" not in plain.arguments, "its own settings count"


def test_port_0_stays_0_for_every_worker():
    config = dataclasses.replace(FREE_PORTS, prefill=2)
    assert {flag(spec, "--port") for spec in worker_specs(config, cores=2)} == {"0"}


@pytest.mark.parametrize(
    ("cores", "config", "prefill", "decode"),
    [
        (8, UpConfig(), 8, 4),
        (2, UpConfig(), 2, 1),
        (8, UpConfig(prefill=2, decode=4), 4, 1),
        (1, UpConfig(prefill=3, decode=3), 1, 1),
        (8, UpConfig(prefill_threads=3, decode_threads=2), 3, 2),
    ],
)
def test_threads_are_shared_out(cores, config, prefill, decode):
    assert threads_per_worker(config, role="prefill", cores=cores) == prefill
    assert threads_per_worker(config, role="decode", cores=cores) == decode


def test_decode_workers_without_prefill_workers_read_every_prompt_on_all_cores():
    config = UpConfig(prefill=0, decode=2)
    specs = worker_specs(config, cores=8)
    assert [spec.name for spec in specs] == ["decode-0", "decode-1"]
    assert int(flag(specs[0], "--local-prefill-tokens")) > 1_000_000
    assert flag(specs[0], "--threads") == "4"
    spec = gateway_spec(config, prefill=(), decode=(line("decode", "h:2"),))
    assert "--prefill-workers" not in spec.arguments


def test_beside_prefill_workers_they_read_what_they_are_told_to():
    prefill, decode = worker_specs(UpConfig(local_prefill_tokens=300), cores=8)
    assert flag(decode, "--local-prefill-tokens") == "300"
    assert "--local-prefill-tokens" not in prefill.arguments
    _, plain = worker_specs(UpConfig(), cores=8)
    assert "--local-prefill-tokens" not in plain.arguments, "its own settings count"


@pytest.mark.parametrize(
    "wrong",
    [{"decode": 0}, {"prefill": -1}, {"local_prefill_tokens": -1}, {"decode_gpus": (0, -1)}],
    ids=str,
)
def test_nothing_that_could_not_serve_is_started(wrong):
    with pytest.raises(ConfigError, match="give"):
        UpConfig(**wrong)


def test_gateway_is_told_the_workers_unless_redis_knows_them():
    prefill, decode = (line("prefill", "h:1"),), (line("decode", "h:2"), line("decode", "h:3"))
    spec = gateway_spec(UpConfig(), prefill=prefill, decode=decode)
    assert flag(spec, "--prefill-workers") == "h:1"
    assert flag(spec, "--decode-workers") == "h:2,h:3"
    spec = gateway_spec(UpConfig(redis_url="redis://r"), prefill=prefill, decode=decode)
    assert "--prefill-workers" not in spec.arguments
    assert spec.environment == {"TANDEM_GATEWAY__REDIS_URL": "redis://r"}


def test_every_role_reads_the_settings_file_that_was_named():
    named = Path("site.toml")
    specs = [
        *worker_specs(UpConfig(), cores=2, settings_file=named),
        gateway_spec(UpConfig(), prefill=(), decode=(), settings_file=named),
    ]
    assert [flag(spec, "--config") for spec in specs] == ["site.toml"] * 3
    assert "--config" not in gateway_spec(UpConfig(), prefill=(), decode=()).arguments


@pytest.mark.parametrize(
    ("text", "told"),
    [("[decode]\nmax_bach = 8", "max_batch"), ('[gateway]\ntls_cert = "c.pem"', "loopback")],
)
def test_a_settings_file_is_checked_for_every_role_before_any_starts(tmp_path, text, told):
    path = tmp_path / "site.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        run_up(["--config", str(path)])


def test_a_password_is_on_no_command_line_and_in_no_repr():
    config = UpConfig(redis_url="redis://u:hunter2@r/0", prefill=2)
    specs = [*worker_specs(config, cores=2), gateway_spec(config, prefill=(), decode=())]
    for spec in specs:
        assert "hunter2" not in " ".join(spec.arguments) + repr(spec)
        assert spec.environment == {f"TANDEM_{spec.role.upper()}__REDIS_URL": config.redis_url}
    assert gateway_spec(UpConfig(), prefill=(), decode=()).environment == {}


@pytest.mark.parametrize("code", [3, 4, 5, 6])
def test_a_roles_exit_code_becomes_the_supervisors(code):
    error = error_of_exit("decode-0", code, ["last words"])
    assert exit_code_for(error) == code
    assert "decode-0" in error.message
    assert "last words" in error.message


def test_other_ends_are_failures():
    assert exit_code_for(error_of_exit("decode-0", -9, [])) == 1
    assert "signal 9" in error_of_exit("decode-0", -9, []).message
    assert "exit code 0" in error_of_exit("gateway", 0, []).message


@pytest.mark.parametrize(
    "bad", [{"prefill": -1}, {"decode": 0}, {"drain_timeout_s": 0.0}, {"log_format": "xml"}]
)
def test_settings_that_cannot_work_are_refused(bad):
    with pytest.raises(ConfigError):
        UpConfig(**bad)

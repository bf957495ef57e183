from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from shared.config.fields import describe
from shared.config.flags import build_parser, parse_flags
from shared.config.loader import load_config
from shared.errors import ConfigError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Sample:
    """Settings of the tests."""

    port: int = 8101
    """Port of the server."""
    rate: float = 0.5
    """A rate in %."""
    strict: bool = False
    """Refuse unknown fields."""
    peers: tuple[str, ...] = ()
    """Addresses."""
    folder: Path | None = None
    """Where things lie."""
    colour: Colour = Colour.RED
    """Paint."""


def load(**kwargs):
    kwargs.setdefault("environ", {})
    return load_config(Sample, section="prefill", **kwargs)


def test_defaults_say_so():
    loaded = load()
    assert loaded.value == Sample()
    assert set(loaded.origins.values()) == {"default"}


def test_flags_win_over_environment_over_file(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text('[prefill]\nport = 1\nrate = 0.1\npeers = ["a:1", "b:2"]\n[decode]\nx = 1\n')
    loaded = load(
        file=file,
        environ={"TANDEM_PREFILL__PORT": "2", "TANDEM_PREFILL__STRICT": "yes", "HOME": "/x"},
        flags={"port": "3"},
    )
    assert loaded.value == Sample(port=3, rate=0.1, strict=True, peers=("a:1", "b:2"))
    assert loaded.origins["port"] == "flag --port"
    assert loaded.origins["strict"] == "environment TANDEM_PREFILL__STRICT"
    assert loaded.origins["rate"] == f"file {file}"
    assert loaded.origins["colour"] == "default"


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ({"peers": "a:1, b:2,"}, ("a:1", "b:2")),
        ({"folder": "none"}, None),
        ({"folder": "/x"}, Path("/x")),
        ({"colour": "blue"}, Colour.BLUE),
        ({"port": "1_000"}, 1000),
        ({"strict": "off"}, False),
    ],
)
def test_text_becomes_the_declared_type(flags, value):
    (name,) = flags
    assert getattr(load(flags=flags).value, name) == value


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"flags": {"port": "x"}}, ["--port", "whole number"]),
        ({"flags": {"colour": "green"}}, ["--colour", "red, blue"]),
        ({"flags": {"strict": "maybe"}}, ["true or false"]),
        ({"environ": {"TANDEM_PREFILL__PROT": "1"}}, ["PROT", "did you mean port"]),
        ({"environ": {"TANDEM_PREFIL__PORT": "1"}}, ["TANDEM_PREFIL__PORT", "did you mean"]),
        ({"environ": {"TANDEM_REDIS_URL": "x"}}, ["TANDEM_REDIS_URL; known", "TANDEM_DECODE__<"]),
        ({"environ": {"TANDEM_CACHEDIR": "x"}}, ["did you mean TANDEM_CACHE_DIR"]),
        ({"file": Path("/nonexistent/t.toml")}, ["cannot be read", "--config"]),
    ],
)
def test_mistakes_are_named(kwargs, words):
    with pytest.raises(ConfigError) as caught:
        load(**kwargs)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[prefill]\nprot = 1\n", ["prot", "did you mean port"]),
        ("[prefil]\nport = 1\n", ["[prefil]", "did you mean prefill"]),
        ("[prefill\n", ["not valid TOML"]),
        ("prefill = 3\n", ["must be a table"]),
        ("[prefill]\nport = true\n", ["port", "whole number"]),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, text, words):
    file = tmp_path / "t.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file=file)
    for word in words:
        assert word in str(caught.value)


def test_config_variable_names_the_file(tmp_path):
    file = tmp_path / "t.toml"
    file.write_text("[prefill]\nport = 7\n")
    assert load(environ={"TANDEM_CONFIG": str(file)}).value.port == 7


def test_flags_come_from_the_fields(tmp_path):
    parsed = parse_flags(
        Sample, prog="t", section="prefill", argv=["--port", "9", "--config", str(tmp_path)]
    )
    assert parsed.values == {"port": "9"}
    assert parsed.file == tmp_path
    text = build_parser(Sample, prog="t", section="prefill").format_help()
    for info in describe(Sample).values():
        assert info.doc.split()[0] in text
    assert "TANDEM_PREFILL__RATE" in text


def test_unknown_flag_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_flags(Sample, prog="t", section="prefill", argv=["--prot", "9"])
    assert caught.value.code == 2
    assert "--prot" in capsys.readouterr().err


@dataclass(frozen=True)
class Connected:
    """Settings with a secret."""

    redis_url: str = ""
    """Redis."""
    max_batch: int = 32
    """Rows."""
    port: int = 1
    """Port."""


def test_what_is_not_default_is_shown_with_its_origin_and_without_passwords(tmp_path):
    path = tmp_path / "tandem.toml"
    path.write_text('[decode]\nredis_url = "redis://u:secret@h/0"\n')
    loaded = load_config(
        Connected, section="decode", flags={"max_batch": "8"}, environ={}, file=path
    )
    assert loaded.changed() == {
        "max_batch": "8 (flag --max-batch)",
        "redis_url": f"redis://u:***@h/0 (file {path})",
    }


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("--prt", "; did you mean --port?"),
        ("--colur=red", "; did you mean --colour?"),
        ("--confg", "; did you mean --config?"),
        ("--xyz", ""),
    ],
)
def test_an_unknown_flag_is_a_usage_error_with_the_nearest_one(given, hint, capsys):
    with pytest.raises(SystemExit) as ended:
        parse_flags(Sample, prog="tandem prefill", section="prefill", argv=[given])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"unrecognized arguments: {given}{hint}\n")

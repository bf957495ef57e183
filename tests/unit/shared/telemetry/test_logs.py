"""Lines on standard error: JSON or key=value, with names bound and private values hidden."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from shared.errors import ConfigError
from shared.telemetry.logs import configure_logging, log_context


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def _lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_away_from_a_terminal() -> None:
    out = io.StringIO()
    configure_logging(role="decode", worker_id="d1", stream=out)
    structlog.get_logger("x").info("adopted", pages=3)
    (line,) = _lines(out)
    assert line["event"] == "adopted"
    assert (line["role"], line["worker_id"], line["pages"]) == ("decode", "d1", 3)
    assert line["level"] == "info"
    assert "timestamp" in line


def test_key_value_on_a_terminal() -> None:
    out = Terminal()
    configure_logging(role="gateway", stream=out)
    structlog.get_logger("x").warning("redis is lost", tries=2)
    text = out.getvalue()
    assert "level=warning role=gateway event=redis is lost tries=2" in text


def test_the_format_can_be_forced() -> None:
    out = Terminal()
    configure_logging(role="gateway", log_format="json", stream=out)
    structlog.get_logger("x").info("a")
    assert _lines(out)[0]["event"] == "a"


def test_bound_names_are_on_every_line_of_the_block() -> None:
    out = io.StringIO()
    configure_logging(role="gateway", stream=out)
    log = structlog.get_logger("x")
    with log_context(request_id="r1", handoff_id="h1"):
        log.info("inside")
        logging.getLogger("uvicorn.error").warning("from a library")
    log.info("outside")
    inside, library, outside = _lines(out)
    assert (inside["request_id"], inside["handoff_id"]) == ("r1", "h1")
    assert library["request_id"] == "r1"
    assert library["event"] == "from a library"
    assert "request_id" not in outside


@pytest.mark.parametrize("key", ["prompt", "messages", "text", "token_ids", "content"])
def test_prompt_text_is_never_shown(key: str) -> None:
    out = io.StringIO()
    configure_logging(role="gateway", stream=out)
    structlog.get_logger("x").info("bad call", **{key: "a secret"})
    structlog.get_logger("x").info("bad call", **{key: 5})
    assert "secret" not in out.getvalue()
    assert [line[key] for line in _lines(out)] == ["<8 hidden>", "<hidden>"]


def test_exceptions_carry_their_stack_and_no_variables() -> None:
    out = io.StringIO()
    configure_logging(role="gateway", stream=out)
    secret_variable = "words of a user"
    try:
        int("bad")
    except ValueError:
        structlog.get_logger("x").exception("failed")
    (line,) = _lines(out)
    assert "ValueError: invalid literal" in str(line["exception"])
    assert secret_variable not in out.getvalue()


def test_levels() -> None:
    out = io.StringIO()
    configure_logging(role="gateway", level="warning", stream=out)
    structlog.get_logger("x").info("quiet")
    structlog.get_logger("x").error("loud")
    assert [line["event"] for line in _lines(out)] == ["loud"]


@pytest.mark.parametrize("settings", [{"log_format": "xml"}, {"level": "chatty"}])
def test_unknown_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        configure_logging(role="gateway", stream=io.StringIO(), **settings)

"""Every setting has a default, a docstring that becomes its help text, and a reader."""

import dataclasses
from pathlib import Path

import pytest

from deploy.settings import CONFIG_CLASSES, config_class
from shared.config.fields import describe
from shared.config.flags import build_parser

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = {
    "gateway": "gateway",
    "prefill": "prefill_service",
    "decode": "decode_service",
    "up": "deploy",
}


@pytest.mark.parametrize("role", sorted(CONFIG_CLASSES))
def test_every_field_is_documented_and_has_a_default(role):
    for info in describe(config_class(role)).values():
        assert len(info.doc) >= 10, f"{role}.{info.name}: say what it means, unit and effect"
        assert info.doc.endswith((".", ")")), f"{role}.{info.name}: {info.doc!r}"


@pytest.mark.parametrize("role", sorted(CONFIG_CLASSES))
def test_every_field_is_frozen_and_shown_in_help(role):
    cls = config_class(role)
    assert getattr(cls, "__dataclass_params__").frozen  # noqa: B009  the type does not declare it
    text = build_parser(cls, prog=role, section=role).format_help()
    for field in dataclasses.fields(cls):
        assert "--" + field.name.replace("_", "-") in text


@pytest.mark.parametrize("role", sorted(CONFIG_CLASSES))
def test_every_field_is_read_somewhere(role):
    package = ROOT / PACKAGE[role]
    sources = [p for p in package.rglob("*.py") if p != package / "config.py"]
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    unread = [
        field.name
        for field in dataclasses.fields(config_class(role))
        if f".{field.name}" not in text
    ]
    assert not unread, f"settings of {role} that do nothing: {unread}"

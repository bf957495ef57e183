"""Which format a model writes: by name, or by what its chat template says."""

from gateway.tools.base import ToolFormat
from gateway.tools.hermes import HERMES
from gateway.tools.llama3_json import LLAMA3_JSON
from gateway.tools.mistral import MISTRAL
from shared.errors import ConfigError
from shared.tokenizer.chat_template import ChatTemplate

AUTO = "auto"
NONE = "none"

FORMATS: dict[str, ToolFormat] = {f.name: f for f in (HERMES, LLAMA3_JSON, MISTRAL)}
"""Every format by name."""

CHOICES = (AUTO, NONE, *sorted(FORMATS))
"""Values of the setting `tool_parser`."""

# First match wins: what a template tells its model to write.
_SIGNS = (
    ("<tool_call>", HERMES),
    ("[TOOL_CALLS]", MISTRAL),
    ("<|python_tag|>", LLAMA3_JSON),
    ('"parameters": dictionary', LLAMA3_JSON),
)


def check_setting(setting: str) -> str:
    """The setting, when it is one.

    Raises:
        ConfigError: it is no format.
    """
    if setting not in CHOICES:
        raise ConfigError(
            f"tool_parser is {setting!r}, which is no format of tool calls; "
            f"use one of {', '.join(CHOICES)}"
        )
    return setting


def format_for(setting: str, template: ChatTemplate | None) -> ToolFormat | None:
    """The format of a model's tool calls; None when it has none or it is not known."""
    if setting != AUTO:
        return FORMATS.get(setting)
    if template is None or not template.knows_tools:
        return None
    return next((found for sign, found in _SIGNS if template.mentions(sign)), None)

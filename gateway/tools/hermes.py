"""Hermes and Qwen: `<tool_call>` and `</tool_call>` around each object."""

from gateway.tools.base import WHITE_SPACE, ToolFormat

HERMES = ToolFormat(
    name="hermes",
    openers=("<tool_call>",),
    before="\n",
    after="\n",
    end="</tool_call>",
    separator="",
    between=WHITE_SPACE,
    arguments_key="arguments",
)

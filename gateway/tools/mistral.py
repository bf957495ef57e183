"""Mistral: `[TOOL_CALLS]` and a list of objects, then the end of the answer."""

from gateway.tools.base import WHITE_SPACE, ToolFormat

MISTRAL = ToolFormat(
    name="mistral",
    openers=("[TOOL_CALLS]",),
    before="[",
    after="",
    end="]",
    separator=", ",
    between=WHITE_SPACE + "[,",
    arguments_key="arguments",
    # Its templates refuse ids of any other form.
    id_prefix="",
    id_length=9,
)

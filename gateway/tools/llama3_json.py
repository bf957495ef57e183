"""Llama 3: the answer is an object with `name` and `parameters`, nothing around it."""

from gateway.tools.base import WHITE_SPACE, ToolFormat

LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    openers=("{", "<|python_tag|>"),
    before="",
    after="",
    end="",
    separator="",
    between=WHITE_SPACE + ";",
    arguments_key="parameters",
    only_at_start=True,
    # Its template takes one call a turn.
    several=False,
)

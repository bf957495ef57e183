"""Renders conversations with a model's own chat template, sandboxed, the way Hugging Face does."""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from shared.errors import InvalidRequestError, ModelLoadError

_SPECIAL_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's part for training.

    Here it only renders.
    """

    tags = {"generation"}  # noqa: RUF012 - the name and kind are jinja2's

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Returns the block's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja text.
        tool_source: Jinja text for conversations with tools, where a model has one of its own.
        special_tokens: variables such as `bos_token`.

    Raises:
        ModelLoadError: the text is not a Jinja template.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        self._special = dict(special_tokens or {})
        self._sources = source + (tool_source or "")
        self._knows_developer = "developer" in source
        self.knows_tools = "tools" in self._sources
        """Whether it prints the tools that it is given."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
            self._tool_template = environment.from_string(tool_source or source)
        except jinja2.TemplateError as error:
            raise ModelLoadError(
                f"the chat template cannot be compiled ({error}): the model folder is damaged; "
                "pull it again"
            ) from error

    @classmethod
    def from_folder(cls, folder: Path, settings: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template of a folder: `chat_template.jinja`, or the one in the tokenizer's settings.

        Returns:
            None when the model has no template.
        """
        file = folder / "chat_template.jinja"
        source = (
            file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
        )
        tool_source: str | None = None
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source, tool_source = named.get("default"), named.get("tool_use")
        if not source:
            return None
        special = {
            name: value["content"] if isinstance(value, dict) else value
            for name in _SPECIAL_NAMES
            if (value := settings.get(name))
        }
        return cls(source, tool_source=tool_source, special_tokens=special)

    def mentions(self, text: str) -> bool:
        """Whether `text` stands in the template."""
        return text in self._sources

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        Args:
            messages: turns with `role` and `content`; the role `developer` becomes `system` for a
                template that does not know it.
            add_generation_prompt: ends the text where the assistant's turn begins.
            variables: extra template variables.

        Raises:
            InvalidRequestError: the template refuses the conversation, or cannot print it.
        """
        turns = [self._known_role(message) for message in messages]
        template = self._tool_template if (variables or {}).get("tools") else self._template
        try:
            return template.render(
                messages=turns,
                add_generation_prompt=add_generation_prompt,
                **{"tools": None, "documents": None, **self._special, **(variables or {})},
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise InvalidRequestError(
                f"the model's chat template refuses this conversation: {error}; change the roles "
                "or their order",
                param="messages",
            ) from error
        except RecursionError as error:
            raise InvalidRequestError(
                "something in this conversation or its tools is nested too deeply to be printed: "
                "flatten the arguments of a tool call or a tool's parameters",
                param="messages",
            ) from error

    def _known_role(self, message: Mapping[str, Any]) -> dict[str, Any]:
        turn = dict(message)
        if turn.get("role") == "developer" and not self._knows_developer:
            turn["role"] = "system"
        return turn


def _tojson(
    value: Any,  # noqa: ANN401 - any template value
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates pass it by name
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - templates pass it by name
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)

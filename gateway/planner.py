"""Settles what the answers of a request must be: response format and tools into a grammar."""

import contextlib
from dataclasses import dataclass
from typing import Any

from gateway.answer_plan import AnswerPlan
from gateway.schema.tools import AllowedTools, NamedTool, Tool, ToolChoice
from gateway.structured.enforcer import ANY_OBJECT, Enforcer
from gateway.tools.base import ToolFormat
from gateway.tools.grammar import CallRules, call_grammar
from gateway.tools.reading import CallReading
from gateway.tools.registry import format_for
from shared.errors import InvalidRequestError
from shared.tokenizer.tokenizer import Tokenizer

NO_PARSER = "tool_parser_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAnswer:
    """What a request says about its answers, whatever the API."""

    schema: dict[str, Any] | None = None
    """Of an answer that is one JSON value; None: any text."""
    schema_param: str = "response_format"
    """Field that the schema came from."""
    tools: tuple[Tool, ...] = ()
    """What the model may call."""
    tool_param: str = "tools.{}.function"
    """Field that a tool's name and parameters came in, by the tool's index."""
    strict_by_default: bool = False
    """Tools that do not say otherwise are held to their schemas, where all of these can be."""
    choice: ToolChoice = None
    """Whether it must, and what; None: it decides."""
    several: bool = True
    """Several calls in one answer."""
    ignore_eos: bool = False
    """End-of-text does not end an answer."""
    min_tokens: int = 0
    """Nothing ends an answer before so many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The tools of a request and how free the model is."""

    tools: tuple[Tool, ...]
    """All, for the template."""
    allowed: tuple[int, ...]
    """Indices of those that may be called."""
    required: bool
    """One of them must be."""

    def holds(self, index: int, *, default: bool) -> bool:
        """Whether a tool's arguments must conform to its schema."""
        strict = self.tools[index].function.strict
        return self.required or (default if strict is None else strict)


class AnswerPlanner:
    """Makes plans.

    Args:
        enforcer: proves grammars.
        tokenizer: its chat template prints tools and tells the model's format.
        tool_parser: the operator's choice of the format.
    """

    def __init__(self, enforcer: Enforcer, *, tokenizer: Tokenizer, tool_parser: str) -> None:
        self._enforcer = enforcer
        self._tokenizer = tokenizer
        self._tool_parser = tool_parser
        self._format = format_for(tool_parser, tokenizer.chat_template)

    async def plan(self, asked: AskedAnswer) -> AnswerPlan:
        """The plan of a request.

        Raises:
            InvalidRequestError: a schema that cannot be enforced, tools that this model has no
                format for, or parameters that contradict a grammar.
        """
        offer = _offer_of(asked)
        if offer is not None:
            plan = await self._with_tools(asked, offer)
        else:
            plan = AnswerPlan(grammar=await self._grammar(asked.schema, param=asked.schema_param))
        _refuse_endless(plan.grammar, asked)
        return plan

    async def _grammar(self, schema: dict[str, Any] | None, *, param: str) -> str:
        """The grammar of an answer that is one JSON value; empty without a schema.

        Raises:
            InvalidRequestError: it cannot be enforced.
        """
        return "" if schema is None else await self._enforcer.json_schema(schema, param=param)

    async def _with_tools(self, asked: AskedAnswer, offer: Offer) -> AnswerPlan:
        form = self._format
        template = self._tokenizer.chat_template
        if form is None or template is None or not template.knows_tools:
            raise self._no_format()
        await self._grammar(asked.schema, param=asked.schema_param)
        if asked.strict_by_default:
            with contextlib.suppress(InvalidRequestError):  # the plan tells which tools are held
                return await self._with_calls(asked, offer, form, default=True)
        return await self._with_calls(asked, offer, form, default=False)

    async def _with_calls(
        self, asked: AskedAnswer, offer: Offer, form: ToolFormat, *, default: bool
    ) -> AnswerPlan:
        answer = asked.schema
        held = [i for i in offer.allowed if offer.holds(i, default=default)]
        rules = CallRules(
            tools=[await self._arguments(asked, i, held=i in held) for i in offer.allowed],
            required=offer.required,
            several=asked.several,
            answer=answer,
        )
        grammar = call_grammar(form, rules, special_id=self._tokenizer.special_id)
        if grammar:
            await self._enforcer.proven(grammar, param="tools")
        return AnswerPlan(
            grammar=grammar,
            tools=tuple(tool.for_template() for tool in offer.tools),
            held=frozenset(offer.tools[i].function.name for i in held if grammar),
            reading=CallReading(
                form=form,
                names=tuple(name for name, _ in rules.tools),
                enforced=bool(grammar) and (answer is None or form.marked or offer.required),
            ),
            visible={
                token_id: marker
                for marker in form.markers
                if (token_id := self._tokenizer.special_id(marker)) is not None
            },
        )

    async def _arguments(
        self, asked: AskedAnswer, index: int, *, held: bool
    ) -> tuple[str, dict[str, Any]]:
        """A tool's name and what its arguments must be; checked where they are held to it."""
        function = asked.tools[index].function
        if not held:
            return function.name, ANY_OBJECT
        schema = function.arguments_schema()
        await self._grammar(schema, param=f"{asked.tool_param.format(index)}.parameters")
        return function.name, schema

    def _no_format(self) -> InvalidRequestError:
        template = self._tokenizer.chat_template
        if template is None or not template.knows_tools:
            why = "its chat template does not print tools; use a model whose template does"
        else:
            why = (
                f"no format of tool calls is known for it (tool_parser is {self._tool_parser!r}); "
                "set tool_parser to the one that it writes, --tool-parser on the command line"
            )
        return InvalidRequestError(
            f"tools cannot be used with this model: {why}", code=NO_PARSER, param="tools"
        )


def _offer_of(asked: AskedAnswer) -> Offer | None:
    """The tools that may be called; None when there are none."""
    tools, choice = asked.tools, asked.choice
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(
                f"two tools are called {name!r}; give each a name of its own",
                param=f"{asked.tool_param.format(index)}.name",
            )
    if not tools and choice not in (None, "none", "auto"):
        raise InvalidRequestError(
            "tool_choice was sent without tools; send tools or leave it out", param="tool_choice"
        )
    if not tools or choice == "none":
        return None
    wanted, required = names, choice == "required"
    if isinstance(choice, NamedTool):
        wanted, required = [choice.function.name], True
    elif isinstance(choice, AllowedTools):
        wanted = [tool.function.name for tool in choice.allowed_tools.tools]
        required = choice.allowed_tools.mode == "required"
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise InvalidRequestError(
            f"tool_choice names {unknown[0]!r}, which is not among the tools; correct the name",
            param="tool_choice",
        )
    return Offer(
        tools=tools,
        allowed=tuple(names.index(name) for name in dict.fromkeys(wanted)),
        required=required,
    )


def _refuse_endless(grammar: str, asked: AskedAnswer) -> None:
    """Refuses to go on where a grammar ends."""
    if grammar and (asked.ignore_eos or asked.min_tokens):
        param = "ignore_eos" if asked.ignore_eos else "min_tokens"
        raise InvalidRequestError(
            f"{param} keeps an answer from ending, but {asked.schema_param} or tools say where it "
            "ends; leave one of them out",
            param=param,
        )

"""`response_format` of a Generate call."""

from typing import Any

from gateway.answer_plan import AnswerPlan
from gateway.planner import AnswerPlanner, refuse_endless
from gateway.schema.parse import parse_object
from gateway.structured.enforcer import ANY_OBJECT
from protos.tandem.v1 import inference_pb2
from shared.errors import InvalidRequestError
from shared.grammar.compiler import INVALID

_PARAM = "response_format"


async def plan_of(request: inference_pb2.GenerateRequest, planner: AnswerPlanner) -> AnswerPlan:
    """What the answers must be.

    Raises:
        InvalidRequestError: a schema that is no JSON object or cannot be enforced, or parameters
            that contradict it.
    """
    grammar = await planner.grammar(_schema(request), param=_PARAM)
    refuse_endless(grammar, ignore_eos=request.ignore_eos, min_tokens=request.stop.min_tokens)
    return AnswerPlan(grammar=grammar)


def _schema(request: inference_pb2.GenerateRequest) -> dict[str, Any] | None:
    given = request.response_format
    match given.WhichOneof("kind"):
        case "json_schema":
            try:
                return parse_object(given.json_schema.encode())
            except InvalidRequestError as error:
                raise InvalidRequestError(
                    "response_format.json_schema is not a JSON object; send the schema as JSON "
                    "text",
                    code=INVALID,
                    param=_PARAM,
                ) from error
        case "json_object" if given.json_object:
            return ANY_OBJECT
        case _:
            return None

"""Items of a response while they are written: each opens, grows and closes in events of its own."""

import uuid
from typing import Any, Protocol

Json = dict[str, Any]


class OpenItem(Protocol):
    """The last item of the output."""

    def opening(self) -> list[Json]:
        """Events that announce it."""
        ...

    def closing(self, *, complete: bool) -> list[Json]:
        """Events that end it; an incomplete one was cut off."""
        ...

    def described(self, status: str) -> Json:
        """The item so far; `status` is in_progress, completed or incomplete."""
        ...


class MessageItem:
    """Text of the model.

    Args:
        index: its place in the output.
    """

    def __init__(self, index: int) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"
        self._index = index
        self._text: list[str] = []
        self._logprobs: list[Json] = []

    def opening(self) -> list[Json]:
        """See `OpenItem`."""
        item = {**self.described("in_progress"), "content": []}
        return [
            {"type": "response.output_item.added", "output_index": self._index, "item": item},
            {"type": "response.content_part.added", **self._place(), "part": self._part()},
        ]

    def more(self, text: str, *, logprobs: list[Json]) -> Json:
        """The event of more text, and of the tokens that it is made of when they were asked for."""
        self._text.append(text)
        self._logprobs += logprobs
        return {
            "type": "response.output_text.delta",
            **self._place(),
            "delta": text,
            "logprobs": logprobs,
        }

    def closing(self, *, complete: bool) -> list[Json]:
        """See `OpenItem`."""
        part = self._part()
        return [
            {
                "type": "response.output_text.done",
                **self._place(),
                "text": part["text"],
                "logprobs": part["logprobs"],
            },
            {"type": "response.content_part.done", **self._place(), "part": part},
            {
                "type": "response.output_item.done",
                "output_index": self._index,
                "item": self.described(_status(complete=complete)),
            },
        ]

    def described(self, status: str) -> Json:
        """See `OpenItem`."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [self._part()],
        }

    def _part(self) -> Json:
        return {
            "type": "output_text",
            "text": "".join(self._text),
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index, "content_index": 0}


class CallItem:
    """A call of a function.

    Args:
        index: its place in the output.
        call_id: what its output will name.
        name: of the function.
    """

    def __init__(self, index: int, *, call_id: str, name: str) -> None:
        self._id = f"fc_{uuid.uuid4().hex}"
        self._index = index
        self._call_id = call_id
        self._name = name
        self._arguments: list[str] = []

    def opening(self) -> list[Json]:
        """See `OpenItem`."""
        item = self.described("in_progress")
        return [{"type": "response.output_item.added", "output_index": self._index, "item": item}]

    def more(self, arguments: str) -> Json:
        """The event of more arguments."""
        self._arguments.append(arguments)
        return {
            "type": "response.function_call_arguments.delta",
            **self._place(),
            "delta": arguments,
        }

    def closing(self, *, complete: bool) -> list[Json]:
        """See `OpenItem`."""
        item = self.described(_status(complete=complete))
        return [
            {
                "type": "response.function_call_arguments.done",
                **self._place(),
                "name": self._name,
                "arguments": item["arguments"],
            },
            {"type": "response.output_item.done", "output_index": self._index, "item": item},
        ]

    def described(self, status: str) -> Json:
        """See `OpenItem`."""
        return {
            "id": self._id,
            "type": "function_call",
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": "".join(self._arguments),
        }

    def _place(self) -> Json:
        return {"item_id": self._id, "output_index": self._index}


def _status(*, complete: bool) -> str:
    return "completed" if complete else "incomplete"

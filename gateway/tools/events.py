"""What is read out of an answer's text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call of `name`; its arguments follow."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """The next part of a call's arguments."""

    index: int
    text: str


CallEvent = ContentPiece | CallStarted | ArgumentsPiece


def joined(events: list[CallEvent]) -> list[CallEvent]:
    """The same with neighbouring pieces of one kind as one."""
    found: list[CallEvent] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, ContentPiece) and isinstance(last, ContentPiece):
            found[-1] = ContentPiece(last.text + event.text)
        elif (
            isinstance(event, ArgumentsPiece)
            and isinstance(last, ArgumentsPiece)
            and event.index == last.index
        ):
            found[-1] = ArgumentsPiece(event.index, last.text + event.text)
        else:
            found.append(event)
    return found

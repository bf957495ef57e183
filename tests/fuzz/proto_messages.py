"""Protobuf messages of any type: filled with values that nobody sends, or damaged on the wire."""

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_TEXTS = (
    "", "a", "\x00", "\u202e", "x" * 200, "\U0001f680" * 400, "e" * 70_000, "tiny", "../x", "{}",
    '{"type":"object"}', "start: /(a+)+$/", "{" * 3_000, "h1", "claa", "shared", "quest", "%s",
    '{"type":"array","items":{"$ref":"#"}}',
)  # fmt: skip
_UNSIGNED = (0, 1, 2, 5, 16, 127, 128, 511, 512, 1_023, 1_024, 2**31 - 1, 2**32 - 1)
_WIDE = (*_UNSIGNED, 2**63, 2**64 - 1)
_DOUBLES = (0.0, 0.5, 1.0, 2.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -0.0)
_SIGNED = (0, 1, -1, 2, 512, 2**31 - 1, -(2**31))
_DEEPEST = 4

FD = FieldDescriptor

_VALUES: dict[int, tuple[int | float, ...]] = {
    FD.TYPE_BOOL: (False, True),
    FD.TYPE_DOUBLE: _DOUBLES,
    FD.TYPE_FLOAT: (0.0, 1.0, -1.0, float("nan"), float("inf")),
    FD.TYPE_ENUM: (0, 1, 2, 3, 99, 2**31 - 1, -1),
    FD.TYPE_UINT32: _UNSIGNED,
    FD.TYPE_FIXED32: _UNSIGNED,
    FD.TYPE_UINT64: _WIDE,
    FD.TYPE_FIXED64: _WIDE,
}


def any_message(rng: Random, cls: type[Message]) -> Message:
    """A message with most of its fields set to something."""
    message = cls()
    fill(rng, message)
    return message


def fill(rng: Random, message: Any, *, share: float = 0.6, depth: int = 0) -> None:
    """Sets a share of the fields; of a `oneof` the last one stays, as on the wire."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < share:
            set_field(rng, message, field, depth=depth)


def set_field(rng: Random, message: Any, field: FieldDescriptor, *, depth: int = 0) -> None:
    """One field gets any value of its type."""
    count = rng.choice([0, 1, 2, 5, 40]) if field.is_repeated else 1
    if field.message_type is not None:
        if depth >= _DEEPEST:
            return
        for _ in range(min(count, 5)):
            child = getattr(message, field.name)
            target = child.add() if field.is_repeated else child
            fill(rng, target, depth=depth + 1)
            if not field.is_repeated:
                target.SetInParent()
        return
    values = [_scalar(rng, field) for _ in range(count)]
    if field.is_repeated:
        del getattr(message, field.name)[:]
        getattr(message, field.name).extend(values)
    else:
        setattr(message, field.name, values[0])


def tweak(rng: Random, message: Any) -> None:
    """Changes one field, at any depth."""
    field = rng.choice(message.DESCRIPTOR.fields)
    inner = field.message_type is not None and rng.random() < 0.7
    if inner and not field.is_repeated:
        tweak(rng, getattr(message, field.name))
    elif inner and len(getattr(message, field.name)):
        tweak(rng, rng.choice(getattr(message, field.name)))
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    else:
        set_field(rng, message, field)


def damaged(rng: Random, raw: bytes) -> bytes:
    """Serialised bytes after an accident."""
    kind = rng.randrange(6)
    if kind == 0:
        return raw[: rng.randrange(len(raw) + 1)]
    if kind == 1:
        return raw + rng.randbytes(rng.randrange(1, 30))
    if kind == 2 and raw:
        start = rng.randrange(len(raw))
        return raw[:start] + raw[start + rng.randrange(1, 9) :]
    if kind == 3:
        start = rng.randrange(len(raw) + 1)
        return raw[:start] + rng.randbytes(rng.randrange(1, 9)) + raw[start:]
    if kind == 4:
        # A string that is no UTF-8, a group without an end, a length beyond the end, field 0.
        return raw + rng.choice(
            [b"\x0a\x02\xff\xfe", b"\x0b", b"\x0a\xff\xff\xff\xff\x0f", b"\x00"]
        )
    flipped = bytearray(raw or b"\x08")
    for _ in range(rng.randrange(1, 4)):
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _scalar(rng: Random, field: FieldDescriptor) -> Any:
    if field.type == FD.TYPE_STRING:
        return _text(rng, field.name)
    if field.type == FD.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 16, 40, 3_000]))
    return rng.choice(_VALUES.get(field.type, _SIGNED))


def _text(rng: Random, name: str) -> str:
    if name == "address":
        # Nothing that leaves this machine: ports where nobody listens, or no address at all.
        return rng.choice(
            ["127.0.0.1:1", "[::1]:1", "localhost:1", "", ":", "x", "127.0.0.1:99999"]
        )
    if name == "handoff_id":
        return rng.choice(["", "h1", "h2", f"h{rng.randrange(100)}", "\x00", "h" * 128, "h" * 129])
    return rng.choice(_TEXTS)

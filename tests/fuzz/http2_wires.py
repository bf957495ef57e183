"""Connections to a gRPC port that are no proper HTTP/2, or only just."""

import struct
from collections.abc import Callable, Mapping
from random import Random

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, WITH_PRIORITY = 1, 4, 8, 32
MOST_FRAMES = 300

Maker = Callable[[Random, str], tuple[bytes, ...]]


def frame(kind: int, flags: int, stream: int, payload: bytes, *, length: int = -1) -> bytes:
    """One frame; `length` lies about its size."""
    size = len(payload) if length < 0 else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def settings(*pairs: tuple[int, int]) -> bytes:
    """A settings frame."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in pairs))


def field(name: bytes, value: bytes) -> bytes:
    """A header that is in no table."""
    return b"\x00" + _text(name) + _text(value)


def _text(raw: bytes) -> bytes:
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest = len(raw) - 127
    size = bytearray([127])
    while rest > 127:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes([*size, rest]) + raw


def call_headers(method: str, changes: Mapping[bytes, bytes] | None = None) -> bytes:
    """The head of a gRPC call; `changes` replace fields, an empty value leaves one out."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": method.encode(),
        b":authority": b"x",
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    fields |= changes or {}
    return b"".join(field(name, value) for name, value in fields.items() if value)


def message(payload: bytes, *, flag: int = 0, length: int = -1) -> bytes:
    """A length-prefixed gRPC message; `length` lies about its size."""
    size = len(payload) if length < 0 else length
    return bytes([flag]) + struct.pack(">I", size) + payload


def started(method: str, changes: Mapping[bytes, bytes] | None = None) -> bytes:
    """A connection with one open call on stream 1."""
    return PREFACE + settings() + frame(HEADERS, END_HEADERS, 1, call_headers(method, changes))


def garbage(rng: Random, _method: str) -> tuple[bytes, ...]:
    """No HTTP/2, or nothing but its first line."""
    start = rng.choice([b"", PREFACE, PREFACE[: rng.randrange(24)], PREFACE + settings()])
    return (start + rng.randbytes(rng.randrange(1, 800)),)


def other_protocols(rng: Random, method: str) -> tuple[bytes, ...]:
    """HTTP/1.1, TLS, and others."""
    return (
        rng.choice(
            [
                b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
                b"POST %s HTTP/1.1\r\ncontent-length: 4\r\n\r\nabcd" % method.encode(),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(300),
                b"\x00" * 100,
                b"*1\r\n$4\r\nPING\r\n",
                b"SSH-2.0-x\r\n",
            ]
        ),
    )


def frames(rng: Random, method: str) -> tuple[bytes, ...]:
    """Valid frames in an order that makes no sense, or with sizes and streams that do not."""
    pieces = [PREFACE, settings()]
    for _ in range(rng.randrange(1, 12)):
        payload = rng.choice([b"", rng.randbytes(rng.randrange(64)), call_headers(method)])
        pieces.append(
            frame(
                rng.choice([*range(10), rng.randrange(256)]),
                rng.randrange(256),
                rng.choice([0, 1, 2, 3, 2**31 - 1, 2**32 - 1]),
                payload,
                length=rng.choice([-1, -1, -1, 0, 2**24 - 1, 16_385]),
            )
        )
    return _halves(rng, b"".join(pieces))


def lengths(rng: Random, method: str) -> tuple[bytes, ...]:
    """Messages whose length prefix lies."""
    size = rng.choice([0, 1, 4, 5, 2**16, 2**31 - 1, 2**32 - 1, 16 * 2**20 + 1])
    payload = rng.randbytes(rng.randrange(40))
    body = rng.choice(
        [
            message(payload, length=size),
            message(payload, flag=rng.randrange(1, 256)),
            message(payload)[: rng.randrange(5)],
            message(payload) * rng.randrange(2, 9),
            b"",
        ]
    )
    ends = rng.choice([0, END_STREAM, END_STREAM])
    return _halves(rng, started(method) + frame(DATA, ends, 1, body))


def heads(rng: Random, method: str) -> tuple[bytes, ...]:
    """Calls with heads that no gRPC client sends."""
    changes: dict[bytes, bytes] = rng.choice(
        [
            {b"content-type": b"text/html"},
            {b"content-type": b""},
            {b"content-type": b"application/grpc+json"},
            {b"content-type": b"application/grpc;charset=\xff"},
            {b"te": b""},
            {b":method": b"GET"},
            {b":method": b""},
            {b":path": b""},
            {b":path": b"no-slash"},
            {b":path": b"/" + b"p" * 9_000},
            {b":path": b"/tandem.v1.InferenceService/\xff\xfe"},
            {b":scheme": b"gopher"},
            {b"grpc-timeout": rng.choice([b"0n", b"-1S", b"99999999999H", b"x", b"1"])},
            {b"grpc-encoding": rng.choice([b"gzip", b"nothing", b"\x00"])},
            {b"grpc-accept-encoding": b"," * 500},
            {b"x-request-id": b"\r\n\x00"},
            {b"x-request-id": b"i" * rng.choice([200, 15_000, 20_000])},
            {b"traceparent": b"00-" + b"z" * 300},
            {b"X-Upper": b"y"},
            {b"tandem-handoff-token-bin": b"!!! no base64 !!!"},
            {b"connection": b"keep-alive"},
        ]
    )
    return _halves(
        rng, started(method, changes) + frame(DATA, END_STREAM, 1, message(rng.randbytes(9)))
    )


def floods(rng: Random, method: str) -> tuple[bytes, ...]:
    """Many frames that cost the sender nothing."""
    many = rng.randrange(20, MOST_FRAMES)
    head = call_headers(method)
    return (
        rng.choice(
            [
                PREFACE + settings() + frame(PING, 0, 0, b"12345678") * many,
                PREFACE + settings() * many,
                PREFACE + settings((4, 2**32 - 1)),
                PREFACE + settings((3, 0), (5, 1), (6, 1)),
                PREFACE
                + settings()
                + b"".join(
                    frame(HEADERS, END_HEADERS, 2 * index + 1, head)
                    + frame(RESET, 0, 2 * index + 1, struct.pack(">I", 8))
                    for index in range(many)
                ),
                PREFACE
                + settings()
                + frame(HEADERS, 0, 1, head)
                + frame(CONTINUATION, 0, 1, field(b"a", b"b" * 100)) * many,
                started(method) + frame(WINDOW, 0, 1, struct.pack(">I", 2**31 - 1)) * 3,
                started(method) + frame(WINDOW, 0, 0, struct.pack(">I", 0)),
                started(method) + frame(DATA, 0, 1, b"") * many,
                started(method) + frame(PRIORITY, 0, 1, struct.pack(">IB", 1, 1)) * many,
            ]
        ),
    )


def tables(rng: Random, method: str) -> tuple[bytes, ...]:
    """Compressed heads that point to nowhere or never end."""
    block = rng.choice(
        [
            b"\xff" * 10,
            b"\x80",
            b"\xbe\xbf\xc0",
            b"\x3f" + b"\xff" * 9 + b"\x01",
            b"\x00\xff\xff\xff\xff\xff\xff\x01a",
            b"\x00\x81\xff\x81\xff",
            b"\x40" + rng.randbytes(60),
            call_headers(method)[: rng.randrange(1, 40)],
            call_headers(method) + b"\x00\x05",
            rng.randbytes(100),
        ]
    )
    flags = rng.choice([END_HEADERS, END_HEADERS | END_STREAM, PADDED | END_HEADERS, WITH_PRIORITY])
    return (PREFACE + settings() + frame(HEADERS, flags, 1, block),)


def _halves(rng: Random, raw: bytes) -> tuple[bytes, ...]:
    cut = rng.randrange(len(raw) + 1)
    return (raw,) if rng.random() < 0.5 else (raw[:cut], raw[cut:])


MAKERS: dict[str, Maker] = {
    "h2 garbage": garbage,
    "other protocols": other_protocols,
    "frames": frames,
    "length prefixes": lengths,
    "call heads": heads,
    "frame floods": floods,
    "header tables": tables,
}
"""Every kind of connection that is no proper HTTP/2."""

"""Connections that are no proper HTTP/1.1, or only just."""

import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from random import Random

from tests.fuzz.exchange import Wire

CHAT = b"/v1/chat/completions"
BODY = json.dumps(
    {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
).encode()
SMUGGLED = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
TARGETS = (
    b"/v1/chat/completions", b"/v1/completions", b"/tokenize", b"/detokenize", b"/version",
    b"/v1/chat/completions/render", b"/v1/models", b"/v1/models/x", b"/props", b"/load",
    b"/health/ready", b"/health/live", b"/health", b"/healthz", b"/metrics", b"/openapi.json",
    b"/admin/workers", b"/admin/live", b"/admin/workers/nobody/drain", b"/",
)  # fmt: skip
METHODS = (
    b"GET", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"PROPFIND", b"get", b"G",
    b"PRI", b"CONNECT", b"X" * 40, b"GE\tT", b"GET\x00", b"\xffGET", b"M-SEARCH", b"QUERY",
)  # fmt: skip

Maker = Callable[[Random], Wire]


def post(body: bytes = BODY, *, headers: bytes = b"", target: bytes = CHAT) -> bytes:
    """A request whose length is right unless `headers` says otherwise."""
    length = b"" if b"content-length" in headers.lower() or b"chunked" in headers.lower() else (
        b"content-length: %d\r\n" % len(body)
    )  # fmt: skip
    return (
        b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % target
        + length
        + headers
        + b"\r\n"
        + body
    )


def junk(rng: Random, longest: int) -> bytes:
    """Any bytes."""
    return rng.randbytes(rng.randrange(1, longest))


def request_line(rng: Random) -> Wire:
    """Broken first lines."""
    line = rng.choice(
        [
            b"GET\r\n\r\n",
            b"GET  / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1 x\r\nhost: x\r\n\r\n",
            b"GET / http/1.1\r\nhost: x\r\n\r\n",
            b"/ HTTP/1.1\r\n\r\n",
            b"GET /\r\n\r\n",
            b"GET / HTTP/1.0\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b" GET / HTTP/1.1\r\n\r\n",
            b"GET /\x00 HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
            b"GET " + b"/" * rng.randrange(1, 50_000) + b" HTTP/1.1\r\nhost: x\r\n\r\n",
            b"\r\n" * rng.randrange(1, 2_000) + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(64),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(40),
        ]
    )
    return Wire(pieces=(line,))


def garbage(rng: Random) -> Wire:
    """No HTTP at all."""
    return Wire(pieces=tuple(junk(rng, 600) for _ in range(rng.randrange(1, 4))), max_answers=2)


def smuggled(rng: Random) -> Wire:
    """Two ways to say how long a body is, so that proxies and servers may disagree."""
    chunked = b"transfer-encoding: chunked\r\n"
    chunks = b"0\r\n\r\n" + SMUGGLED
    longer = BODY + SMUGGLED
    te = rng.choice(
        [b"chunked, identity", b"xchunked", b" chunked", b"chunked\x0b", b"identity", b"Chunked",
         b"chunked,chunked", b"gzip, chunked", b"\tchunked", b"chunk ed"]
    )  # fmt: skip
    raw = rng.choice(
        [
            post(chunks, headers=b"content-length: %d\r\n" % len(chunks) + chunked),
            post(chunks, headers=chunked + b"content-length: 5\r\n"),
            post(chunks, headers=b"content-length: 5\r\ntransfer-encoding: %s\r\n" % te),
            post(longer, headers=b"content-length: %d\r\ncontent-length: 3\r\n" % len(BODY)),
            post(longer, headers=b"content-length: 3, %d\r\n" % len(BODY)),
            post(longer, headers=b"content-length: +%d\r\n" % len(BODY)),
            post(longer, headers=b"content-length: -1\r\n"),
            post(longer, headers=b"content-length: 0x%x\r\n" % len(BODY)),
            post(longer, headers=b"content-length : %d\r\n" % len(BODY)),
            post(longer, headers=b"content-length: %s\r\n" % (b"9" * rng.randrange(4, 400))),
            post(longer, headers=b"content-length: %d\r\n\x20folded: yes\r\n" % len(longer)),
            post(longer, headers=b"x: a\r\n\tcontent-length: 1\r\n"),
            post(longer, headers=b"content-length: %d\n" % len(longer)),
            post(longer, headers=b"x: 1\rcontent-length: 0\r\n"),
        ]
    )
    return Wire(pieces=_cut(rng, raw, pieces=rng.randrange(1, 4)))


def line_ends(rng: Random) -> Wire:
    """Bare line feeds, bare carriage returns, folded and nameless headers."""
    raw = post()
    head, _, body = raw.partition(b"\r\n\r\n")
    damaged = rng.choice(
        [
            head.replace(b"\r\n", b"\n") + b"\n\n" + body,
            head.replace(b"\r\n", b"\r") + b"\r\r" + body,
            head + b"\r\n folded: 1\r\n\r\n" + body,
            head + b"\r\n: nameless\r\n\r\n" + body,
            head + b"\r\nno colon here\r\n\r\n" + body,
            head + b"\r\nna me: x\r\n\r\n" + body,
            head + b"\r\nx: \x00\x01\x02\r\n\r\n" + body,
            head + b"\r\nx: \xff\xfe\xc3\r\n\r\n" + body,
            head + b"\r\n\xc3\xa4: x\r\n\r\n" + body,
            head + b"\n\r\n" + body,
        ]
    )
    return Wire(pieces=(damaged,))


def long_heads(rng: Random) -> Wire:
    """More header than anybody needs."""
    size = rng.choice([30_000, 33_000, 70_000, 400_000])
    headers = rng.choice(
        [
            b"cookie: " + b"a" * size + b"\r\n",
            b"".join(b"x-%d: y\r\n" % index for index in range(size // 8)),
            b"a" * size + b": y\r\n",
            b"x:" + b" " * size + b"y\r\n",
            b"x: y\r\n" * (size // 6),
        ]
    )
    return Wire(pieces=_cut(rng, post(headers=headers), pieces=rng.randrange(1, 6)))


def chunks(rng: Random) -> Wire:
    """Broken chunked bodies."""
    start = post(b"", headers=b"transfer-encoding: chunked\r\n")
    whole = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    body = rng.choice(
        [
            whole,
            b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY),
            b"%x\r\n%s" % (len(BODY) + 5, BODY),
            b"%x\r\n%s\r\n0\r\n\r\n" % (max(0, len(BODY) - 3), BODY),
            b"zz\r\n" + BODY,
            b"-1\r\n" + BODY,
            b"ffffffffffffffffff\r\n" + BODY,
            b"1;" + b"e" * rng.randrange(1, 70_000) + b"\r\nx\r\n0\r\n\r\n",
            b"1\r\nx" * 500 + b"0\r\n\r\n",
            b"1\r\nx\r\n" * rng.randrange(1, 3_000) + b"0\r\n\r\n",
            whole[:-2] + b"trailer: " + b"t" * rng.randrange(1, 70_000) + b"\r\n\r\n",
            whole + SMUGGLED,
            b"\r\n\r\n",
            junk(rng, 200),
        ]
    )
    pieces = _cut(rng, start + body, pieces=rng.randrange(1, 5))
    return Wire(pieces=pieces, max_answers=2)


def early_end(rng: Random) -> Wire:
    """A client that is gone before its request is whole, or right after."""
    raw = post() if rng.random() < 0.8 else post(headers=b"expect: 100-continue\r\n")
    return Wire(pieces=_cut(rng, raw[: rng.randrange(1, len(raw) + 1)], pieces=2), aborts=True)


def short_body(rng: Random) -> Wire:
    """Less body than was announced."""
    cut = rng.randrange(0, len(BODY))
    return Wire(pieces=(post(BODY[:cut], headers=b"content-length: %d\r\n" % len(BODY)),))


def slow_body(rng: Random) -> Wire:
    """A body in many small pieces."""
    return Wire(pieces=_cut(rng, post(headers=b"connection: close\r\n"), pieces=20), waits=True)


def pipelined(rng: Random) -> Wire:
    """Several requests at once, some of them broken."""
    parts = [
        rng.choice([SMUGGLED, post(), b"GET /load HTTP/1.1\r\nhost: x\r\n\r\n", junk(rng, 40)])
        for _ in range(rng.randrange(2, 6))
    ]
    return Wire(pieces=_cut(rng, b"".join(parts), pieces=rng.randrange(1, 4)), max_answers=6)


def content_types(rng: Random) -> Wire:
    """Bodies that are not what they are called, or called what nobody serves."""
    form = b"model=tiny&prompt=x"
    headers, body = rng.choice(
        [
            (b"content-encoding: gzip\r\n", gzip.compress(BODY)),
            (b"content-encoding: gzip\r\n", gzip.compress(b"a" * 2_000_000)),
            (b"content-encoding: br\r\n", junk(rng, 300)),
            (b"content-type: application/x-www-form-urlencoded\r\n", form),
            (b"content-type: multipart/form-data; boundary=\xff\r\n", junk(rng, 300)),
            (b"content-type: application/json; charset=utf-16\r\n", BODY.decode().encode("utf-16")),
            (b"content-type: text/event-stream\r\n", BODY),
            (b"content-type:\r\n", BODY),
            (b"expect: 100-continue\r\n", BODY),
            (b"expect: nothing\r\n", BODY),
            (b"upgrade: websocket\r\nconnection: upgrade\r\n", BODY),
            (
                b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AA\r\n",
                BODY,
            ),
            (b"accept-encoding: \xff, gzip;q=9\r\naccept: */*;;;\r\n", BODY),
            (b"x-request-id: " + junk(rng, 300).translate(None, b"\r\n\x00") + b"\r\n", BODY),
            (b"traceparent: 00-" + b"f" * 90 + b"\r\ntracestate: ,,=\r\n", BODY),
            (b"authorization: Bearer \xf0\x9f\r\n", BODY),
            (b"", b"\xef\xbb\xbf" + BODY),
            (b"", junk(rng, 500)),
            (b"", b""),
            (b"", b"a" * 9_000_000 if rng.random() < 0.1 else b"a" * 90_000),
        ]
    )
    target = rng.choice((*TARGETS[:4], CHAT))
    return Wire(pieces=(post(body, headers=headers, target=target),))


def targets(rng: Random) -> Wire:
    """Odd methods, paths and queries."""
    path = rng.choice(TARGETS)
    odd = rng.choice(
        [
            path,
            b"/" + path,
            path + b"/",
            path + b"//",
            b"/." + path,
            b"/.." + path,
            b"/v1/../v1/models",
            b"/static/../../etc/passwd",
            b"/static/%2e%2e/%2e%2e/etc/passwd",
            b"/page/..%5c..%5capp.py",
            path.replace(b"/", b"%2f"),
            path + b"%00",
            path + b"%",
            path + b"%zz",
            path + b"%c3%28",
            path + b"?" + junk(rng, 100).translate(None, b" \r\n\x00#"),
            path + b"?a=%ff&a=%00&&=;%",
            path + b"#fragment",
            path + b"?" + b"q" * rng.randrange(1, 40_000),
            path + b";v=1",
            path.upper(),
            b"*",
            b"http://elsewhere" + path,
            b"http://[::" + path,
            b"//elsewhere" + path,
            b"x:443",
            b"\\v1\\models",
            b"/v1/models/" + b"m" * rng.randrange(1, 3_000),
            b"/v1/models/%F0%9F%98%80%ED%A0%80",
            b"/admin/workers/" + junk(rng, 60).hex().encode() + b"/drain",
            b"/admin/workers/%2e%2e/drain",
        ]
    )
    method = rng.choice(METHODS)
    raw = b"%s %s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % (method, odd)
    return Wire(pieces=(raw + b"content-length: 2\r\n\r\n{}",))


def _cut(rng: Random, raw: bytes, *, pieces: int) -> tuple[bytes, ...]:
    """The same bytes in up to so many pieces."""
    cuts = sorted({0, len(raw), *(rng.randrange(len(raw) + 1) for _ in range(pieces - 1))})
    return tuple(raw[a:b] for a, b in pairwise(cuts)) or (raw,)


MAKERS: dict[str, Maker] = {
    "request line": request_line,
    "garbage": garbage,
    "smuggling": smuggled,
    "line ends": line_ends,
    "long heads": long_heads,
    "chunks": chunks,
    "early end": early_end,
    "short body": short_body,
    "slow body": slow_body,
    "pipelining": pipelined,
    "content types": content_types,
    "targets": targets,
}
"""Every kind of malformed connection."""

"""Malformed requests: invalid forms, contradictory heads, and bytes that are not HTTP."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

BOUNDARY = b"fusionray"
FORM = b"multipart/form-data; boundary=" + BOUNDARY
NAMES = (
    b"../../etc/passwd", b"..\\..\\windows\\win.ini", b"/etc/passwd", b"a\0b", b"a\r\nX-Evil: 1", b"CON", b".", b"",
    b" ",
    "雪\u202egnp.exe".encode(), "\ufeff🙂".encode(), b"\xff\xfe\x80", b"%2e%2e%2f", b"${jndi:ldap://127.0.0.1/a}",
    b"a" * 4000,
    b"a" * 100_000, b'"; filename="b', b"<script>", b"-rf", b"|id", b"\x1b[2J", "e\u0301" .encode() * 500,
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The body of a POST and its content type."""

    content_type: bytes
    body: bytes


def part(name: bytes, body: bytes, filename: bytes | None = b"a.png", extra: bytes = b"") -> bytes:
    file = b"" if filename is None else b'; filename="' + filename + b'"'
    return b'--%s\r\nContent-Disposition: form-data; name="%s"%s\r\n%s\r\n%s\r\n' % (BOUNDARY, name, file, extra, body)


def form(*parts: bytes) -> Form:
    return Form(FORM, b"".join(parts) + b"--" + BOUNDARY + b"--\r\n")


def fuse_form(source: bytes, target: bytes, *more: bytes) -> Form:
    return form(part(b"source", source), part(b"target", target), *more)


def content_types(whole: Form) -> Iterator[Form]:
    """Send a valid form with invalid content types."""
    for content_type in (
        b"", b"multipart/form-data", b"multipart/form-data; boundary=", b"multipart/form-data; boundary=other", b"/",
        b";",
        b'multipart/form-data; boundary="fusionray', b"multipart/form-data; boundary=" + b"b" * 5000, b"\xff\xfe\x80",
        b"multipart/form-data; boundary=fusionray; boundary=other", b"multipart/mixed; boundary=fusionray",
        b"text/plain",
        b"multipart/form-data; boundary=\xe9", b"multipart/form-data, multipart/form-data; boundary=fusionray",
        b"image/png",
        b"multipart/form-data; boundary*=utf-8''fusionray", b"application/json", b"application/x-www-form-urlencoded",
        b"application/xml", b"MULTIPART/FORM-DATA; BOUNDARY=fusionray", b"application/octet-stream", b"a" * 9000,
    ):  # fmt: skip
        yield Form(content_type, whole.body)
    for charset in (
        b"klingon",
        b"utf-16",
        b"utf-7",
        b"punycode",
        b"idna",
        b"rot13",
        b"hex",
        b"zlib",
        b"undefined",
        b"\xff",
    ):
        yield Form(FORM + b"; charset=" + charset, whole.body)
        yield Form(FORM + b"; charset=" + charset, part(b"faces", b"\xff\xfe\x80all", None) + whole.body)


def file_names(source: bytes, target: bytes) -> Iterator[Form]:
    for name in NAMES:
        yield form(part(b"source", source, name), part(b"target", target, name))
        yield form(part(b"source", source, b"x\"; filename*=utf-8''" + name.replace(b"\r\n", b"") + b'; y="'))
        yield form(part(name, source), part(b"source", source), part(b"target", target))


def wrong_values(source: bytes, target: bytes) -> Iterator[Form]:
    values = (b"", b"0", b"-1", b"null", b"true", b"[]", b'{"a":1}', b"largest\0", b"ALL", b" all", b"all\r\n",
              "\uff41\uff4c\uff4c".encode(),
              b"\xff\xfe", b"1e999", b"9" * 5000, b"a" * 200_000, b"../..", b"largest,all", b"nan",
              b"{{7*7}}")  # fmt: skip
    for field in (
        b"faces",
        b"format",
        b"model",
        b"mark",
        b"consent",
        b"identity",
        b"source",
        b"target",
        b"__proto__",
        b"faces[]",
    ):
        for value in values:
            yield fuse_form(source, target, part(field, value, None))
        yield fuse_form(source, target, part(field, b"all", b"file.txt"))
        yield fuse_form(source, target, part(field, b"all", None), part(field, b"png", None))


def broken_parts(whole: Form) -> Iterator[Form]:
    """Corrupt the structure of a form."""
    one = part(b"source", b"x")
    close = b"--" + BOUNDARY + b"--\r\n"
    for body in (
        b"", b"\r\n", b"--", close, close * 3, b"--" + BOUNDARY, b"--" + BOUNDARY + b"\r\n", whole.body[2:],
        b"\r\n" + whole.body,
        b"preamble\r\n" + whole.body, whole.body + b"epilogue" * 100, whole.body.replace(b"\r\n", b"\n"),
        whole.body * 2,
        whole.body.replace(b"form-data", b"attachment"), whole.body.replace(b"Content-Disposition", b"X"),
        one * 1001 + close,
        whole.body.replace(b"name=", b"nome="), whole.body.replace(b'"', b"'"), whole.body.replace(b": ", b" "),
        one * 5000 + close,
        part(b"faces", b"all", None) * 1500 + close, whole.body.replace(b"--" + BOUNDARY + b"--", b"--" + BOUNDARY),
        part(b"source", part(b"source", b"x") + close) + close, part(b"source", b"x", b"a", b"X-A: 1\r\n" * 9) + close,
        part(b"source", b"x", b"a", b"X-A: " + b"a" * 100_000 + b"\r\n") + close,
        part(b"source", b"x", b"a", b"\r\n" * 50) + close,
        part(b"source", b"x", b"a", b"Content-Length: -1\r\n") + close,
        part(b"source", b"x", b"a", b"X\xff: 1\r\n") + close,
        part(b"source", b"x", b"a", b"Content-Transfer-Encoding: base64\r\nContent-Type: \xff\r\n") + close,
        b"--" + BOUNDARY + b"\r\nContent-Type: multipart/mixed; boundary=in\r\n\r\n--in\r\n\r\nx\r\n--in--\r\n" + close,
        b"-" * 100_000, BOUNDARY * 10_000, b"\0" * 5000,
    ):  # fmt: skip
        yield Form(FORM, body)
    rng = random.Random(21)
    for _ in range(220):
        bent = bytearray(whole.body[: rng.choice([len(whole.body), rng.randrange(len(whole.body))])])
        for _ in range(rng.randrange(1, 25)):
            place = rng.randrange(min(len(bent), rng.choice([90, 300, len(whole.body)])) or 1)
            bent[place : place + rng.randrange(2)] = rng.choice(
                [b"\r\n", b"--", b'"', b"\0", rng.randbytes(2), BOUNDARY]
            )
        yield Form(FORM, bytes(bent))


def queries() -> Iterator[bytes]:
    """Make query strings as they appear in the request line."""
    values = (
        b"",
        b"all",
        b"%00",
        b"%ff%fe",
        b"%",
        b"%zz",
        b"+",
        b"all&faces=largest",
        b"\\",
        b"[]",
        b"%0d%0aX:1",
        b"a" * 30_000,
    )
    for name in (b"faces", b"format", b"model", b"", b"%00", b"faces%5b%5d"):
        yield from (name + b"=" + value for value in values)
    yield from (b"?", b"&" * 20_000, b"=" * 5000, b";", b"a=1&" * 10_000, b"faces", b"#", b"%f0%9f%98%80=1")


FOLLOW = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(*headers: bytes, body: bytes = b"", path: bytes = b"/v1/fuse") -> bytes:
    return b"\r\n".join([b"POST " + path + b" HTTP/1.1", b"Host: localhost", *headers]) + b"\r\n\r\n" + body


def get(path: bytes = b"/healthz", *headers: bytes, line: bytes | None = None) -> bytes:
    return b"\r\n".join([line or b"GET " + path + b" HTTP/1.1", b"Host: localhost", *headers]) + b"\r\n\r\n"


def ambiguous() -> Iterator[bytes]:
    """Make requests with an ambiguous end; the bytes that may be taken for a next request ask for /smuggled."""
    chunked, length = b"Transfer-Encoding: chunked", b"Content-Length: "
    hidden = b"0\r\n\r\n" + SMUGGLED
    for encoding in (
        chunked, b"Transfer-Encoding:chunked", b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked",
        b"TRANSFER-ENCODING: CHUNKED",
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding:\x0bchunked",
        b"Transfer-Encoding: identity, chunked", b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: \tchunked",
        b'Transfer-Encoding: "chunked"', b"Transfer-Encoding: chunked;q=1", b"Transfer-Encoding:\r\n chunked",
        b"Transfer_Encoding: chunked",
        b"X: y\nTransfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked", b"Transfer-Encoding\0: chunked",
        b"TE: chunked",
        b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: cow",
        b"Transfer-Encoding: ",
        b"Transfer-Encod\xc4\xb1ng: chunked", b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
    ):  # fmt: skip
        yield post(length + str(len(hidden)).encode(), encoding, body=hidden)
        yield post(encoding, length + b"4", body=b"5c\r\n" + SMUGGLED.ljust(92, b"x") + b"\r\n0\r\n\r\n")
        yield post(encoding, body=hidden[5:])
    body = SMUGGLED
    for lengths in (
        (b"0",), (b"1",), (b"-1",), (b"+5",), (b"0x10",), (b"5 5",), (b"5,5",), (b"5, 6",), (b" 5 ",), (b"5\t",),
        (b"5.0",), (b"1e1",), (b"",),
        (b"5", b"6"), (b"5", b"5"), (b"0", b"50"), (b"9" * 30,), (b"18446744073709551616",), (b"4294967296",),
        (b"9223372036854775808",),
        ("\uff15".encode(),), (b"\x005",), (b"5\x00",), (b"05",), (b"00000000000000000000005",), (b"9999999999",),
    ):  # fmt: skip
        yield post(*(length + value for value in lengths), body=body)
        yield post(*(length + value for value in lengths), body=body, path=b"/healthz")
    for chunks in (
        b"zz\r\n", b"-1\r\n", b"0x1\r\na\r\n", b" 1\r\na\r\n", b"1 \r\na\r\n", b"+1\r\na\r\n",
        b"ffffffffffffffff\r\n", b"10000000000000001\r\na",
        b"1\na\n0\n\n", b"1\r\nab\r\n", b"2\r\na\r\n", b"1\ra\r0\r\r", b"1;" + b"x" * 70_000 + b"\r\na\r\n0\r\n\r\n",
        b"1;a=\xff\r\na\r\n0\r\n\r\n",
        b"0\r\nX: 1\r\n\r\n", b"0\r\nContent-Length: 50\r\n\r\n", b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"0\r\n" + b"X: 1\r\n" * 200 + b"\r\n",
        b"00000000000000000000001\r\na\r\n0\r\n\r\n", b"\r\n0\r\n\r\n", b"1\r\na0\r\n\r\n",
        b"1;\n" + b"a\r\n0\r\n\r\n", b"0\n\r\n", b"0\r\n\n", b"",
        b"1\r\na\r\n" * 3000 + b"0\r\n\r\n", b"0;\xe2\x98\x83\r\n\r\n",
    ):  # fmt: skip
        yield post(chunked, body=chunks + SMUGGLED)
    for verb in (b"GET", b"DELETE", b"OPTIONS", b"TRACE", b"PUT"):
        yield get(line=verb + b" /healthz HTTP/1.1")[:-2] + b"Content-Length: %d\r\n\r\n" % len(SMUGGLED) + SMUGGLED
    yield get(b"/healthz", b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 777") + SMUGGLED
    yield (
        get(b"/healthz", b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQ")
        + SMUGGLED
    )
    yield post(b"Expect: 100-continue", length + b"%d" % len(SMUGGLED), body=SMUGGLED)
    yield post(b"Expect: nonsense", length + b"%d" % len(SMUGGLED), body=SMUGGLED)


def heads() -> Iterator[bytes]:
    """Make request lines and headers that are invalid, huge, many or unusual."""
    paths = (
        b"/../../etc/passwd", b"/v1/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"//v1//models", b"/v1/models/",
        b"/v1/%66use", b"/%00",
        b"/%ff%fe", b"/\xff", b"/a b", b"/healthz#x", b"?x", b"*", b"", b"/v1/models%0d%0aX:%201",
        b"/" + b"a" * 60_000, b"/" + b"a/" * 60_000,
        b"/" + b"%41" * 30_000, b"/v1/identities/../models", b"/v1/identities/%00",
        b"/v1/jobs/" + b"%f0%9f%98%80" * 50, b"/openapi.json/..",
        b"http://x/healthz", b"http://", b"http://[::1", b"http://a:b:c/", b"foo://a/healthz",
        b"http://evil.example/v1/models", b"//evil.example/",
        b"/v1/models\\..", b"/;/v1/models", b"/V1/MODELS", b"/-/healthz", b"/-/routes", b"/metrics", b"/stats",
        b"/docs", b"/.git/config", b"/%",
        b"/%zz", b"/static/../api.py", b"/static/%2e%2e%2fapi.py", b"/v1/models?" + b"a" * 70_000, "/雪".encode(),
        b"/v1/jobs/job_../result",
    )  # fmt: skip
    yield from (get(path) for path in paths)
    for verb in (
        b"FOO",
        b"get",
        b"",
        b"G\0T",
        b"PRI",
        b"CONNECT",
        b"TRACE",
        b"PROPFIND",
        b"A" * 9000,
        b"\xff",
        b"GET,POST",
        b"PATCH",
        b"QUERY",
    ):
        yield from (
            get(line=verb + b" " + path + b" HTTP/1.1") for path in (b"/v1/fuse", b"/v1/models", b"/healthz", b"*")
        )
    for version in (
        b"HTTP/1.0",
        b"HTTP/0.9",
        b"HTTP/1.2",
        b"HTTP/2.0",
        b"HTTP/9.9",
        b"HTTP/1.1 x",
        b"http/1.1",
        b"HTTP/",
        b"HTP/1.1",
        b"ICY/1.1",
    ):
        yield get(line=b"GET /healthz " + version)
    values = (
        b"\xff\xfe",
        b"a\0b",
        b"a\x01b",
        b"a\rb",
        b"",
        b" " * 9000,
        b"a" * 100_000,
        b"a" * 300_000,
        b"a\r\n b",
        "雪🙂".encode(),
        b"() { :; }",
    )
    names = (
        b"X-Request-Id", b"X-Session-Id", b"serve_multiplexed_model_id", b"Serve-Multiplexed-Model-Id",
        b"X-Request-Timeout-Seconds",
        b"X-Request-Disconnect-Disabled", b"Authorization", b"Accept", b"Accept-Encoding", b"Content-Type",
        b"Cookie", b"Range", b"User-Agent",
        b"If-None-Match", b"Forwarded", b"X-Forwarded-For", b"Referer", b"Connection", b"Keep-Alive", b"traceparent",
        b"X-Serve-Router-A", b"Via",
    )  # fmt: skip
    for name in names:
        yield from (get(b"/v1/models", name + b": " + value) for value in values)
    for seconds in (b"0.000001", b"-1", b"nan", b"inf", b"0", b"1e-9", b"9" * 400):
        yield get(b"/readyz", b"X-Request-Timeout-Seconds: " + seconds)
    for header in (
        b"X\xff: 1",
        b"X Y: 1",
        b": 1",
        b"X",
        b"X : 1",
        b"\0: 1",
        b"Host: y",
        b"Host: a\r\nHost: b",
        b"(x): 1",
        b"X\r\n\r\nY: 1",
        b"\tX: 1",
    ):
        yield get(b"/healthz", header)
    yield from (get(b"/healthz", *(b"X-%d: 1" % n for n in range(count))) for count in (50, 99, 120, 1000, 20_000))
    yield from (
        get(b"/healthz", *([b"X-Request-Id: a"] * 2)),
        get(b"/healthz", b"Connection: close, X, Host, Content-Length"),
    )
    yield from (
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\nHost: localhost\n\n",
        b"\r\n\r\n" + get(),
        b"GET  /healthz  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    )
    yield from (
        get(b"/v1/fuse", b"Connection: Upgrade", b"Upgrade: " + what)
        for what in (b"websocket", b"h2c", b"TLS/1.0", b"\xff")
    )
    key = (b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    yield from (
        get(path, b"Connection: Upgrade", b"Upgrade: websocket", *key)
        for path in (b"/", b"/v1/fuse", b"/v1/models", b"/-/routes")
    )


def handles() -> Iterator[bytes]:
    """Make requests for invalid handles and job IDs."""
    names = (
        b"..", b"../..", b"%2e%2e", b"..%2f..%2fetc%2fpasswd", b"%00", b"id_", b"id_" + b"A" * 43,
        b"id_" + b"A" * 9000, b"%ff%fe",
        b"job_" + b"0" * 32, b"job_../" + b"0" * 32, b"job_" + b"0" * 31 + b"%0a", b"job_" + b"0" * 32 + b"%0a",
        b"*", b"~", b".",
        b"id_%f0%9f%98%80", b"id_" + b"%c3%a9" * 43, b"con", b"%", b"%2f", b"%5c..%5c", b"%u002e%u002e", b"null",
    )  # fmt: skip
    for name in names:
        parts = (b"", b"/result", b"/items", b"/items/1", b"/events", b"/cancel")
        for place in (b"/v1/identities/" + name, *(b"/v1/jobs/" + name + part for part in parts)):
            yield from (get(line=verb + b" " + place + b" HTTP/1.1") for verb in (b"GET", b"DELETE"))
        yield post(b"Content-Length: 0", path=b"/v1/jobs/" + name + b"/cancel")
    header = b"X-FusionRay-Identity: "
    malformed = (b"", b" ", b"id_" + b"A" * 42, b"id_" + b"A" * 44, b"\xff\xfe", b"a\tb", b"id_" + b"a\r\n b", b"?")
    for verb in (b"GET", b"DELETE"):
        line = verb + b" /v1/identities HTTP/1.1"
        yield get(line=line)
        yield from (get(b"", header + name, line=line) for name in (*names, *malformed))
        yield get(b"", *[header + b"id_" + b"A" * 43] * 2, line=line)


def no_http() -> Iterator[bytes]:
    """Make bytes that are not HTTP/1; a closed connection is a valid answer."""
    yield from (
        b"GET /healthz\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET\r\n\r\n",
        b"hello\r\n\r\n",
        b"\0" * 2000,
        b"\r\n" * 500 + b"x\r\n\r\n",
    )
    yield b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160)
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("00000004000000000000000401000000018284") * 50
    yield from (
        b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
        b"EHLO x\r\n\r\n",
        b"*1\r\n$4\r\nPING\r\n\r\n",
        b"\x05\x01\x00",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\r\n" + get(),
    )
    yield b"\r\n\r\n\0\r\nQUIT\n!\x11\x00\x0c" + bytes(12)
    rng = random.Random(31)
    yield from (rng.randbytes(rng.randrange(1, 4000)) + b"\r\n\r\n" for _ in range(60))
    whole = get(b"/v1/models", b"Accept: */*", b"Connection: keep-alive")
    for _ in range(160):
        bent = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            bent[rng.randrange(len(bent) - 4)] = rng.choice([rng.randrange(256), 0, 10, 13, 32, 58])
        yield bytes(bent)


FORM_CLASSES: dict[str, Callable[[bytes, bytes], Iterator[Form]]] = {
    "content types": lambda source, target: content_types(fuse_form(source, target)),
    "file names": file_names,
    "wrong values": wrong_values,
    "broken parts": lambda source, target: broken_parts(fuse_form(source[:300], target[:300])),
}

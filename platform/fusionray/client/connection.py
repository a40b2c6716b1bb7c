"""Requests to a service: its address, the key, the time-out, and what the service refuses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from fusionray import __version__
from fusionray.client.reading import Answer, build_answers, read_problem
from fusionray.environment import read_api_key
from fusionray.errors import AnswerInvalid, ServiceRefused, ServiceUnreachable

# The service has done nothing yet when it refuses with these: too many requests, or full.
RETRIED_STATUSES = frozenset({429, 503})
# Connections that close before an answer begins: of a long request whose replica is lost, nobody else knows the body.
LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
# Requests below these addresses leave something behind, which a second one would do again; all others can be repeated.
LEAVING_SOMETHING = ("/v1/identities", "/v1/jobs", "/v1/stylize/jobs", "/v1/keys")


class Connection:
    """HTTP connections to one service; threads may share them."""

    def __init__(self, url: str, api_key: str | None, timeout: float, *, retry: bool) -> None:
        """Check the settings; nothing is sent.

        Raises: ValueError.
        """
        parsed = read_url(url)
        key = api_key or read_api_key()
        # The error of a header that cannot be sent would show the key.
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("api_key: a key has printable ASCII characters and no spaces")
        headers = {"User-Agent": f"fusionray/{__version__}", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.url = url
        self.timeout = timeout
        self.retry = retry
        self.http = httpx.Client(base_url=parsed, headers=headers, timeout=timeout)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()

    def send(self, method: str, path: str, *, retry: bool = True, **content: Any) -> httpx.Response:
        """Send a request and read the whole answer.

        Raises: ServiceRefused, ServiceUnreachable.
        """
        with self.open(method, path, retry=retry, **content) as response:
            response.read()
        return response

    def ask(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        """Send a request and read the JSON object of the answer.

        Raises: ServiceRefused, ServiceUnreachable, AnswerInvalid.
        """
        document = read_json(self.send(method, path, **content))
        if not isinstance(document, dict):
            raise AnswerInvalid(f"{self.url}{path}: the answer is no JSON object; is it a fusionray service?")
        return document

    def list_pages(
        self, path: str, name: str, kind: type[Answer], query: dict[str, Any] | None = None
    ) -> Iterator[Answer]:
        """Yield the entries of a list, the field `name` of an answer, and of the pages after it.

        Raises: ServiceRefused, ServiceUnreachable, AnswerInvalid.
        """
        following: dict[str, Any] = {}
        while True:
            document = self.ask("GET", path, params={**(query or {}), **following})
            yield from build_answers(kind, document, name)
            if document.get("next") is None:
                return
            following = {"cursor": document["next"]}

    @contextmanager
    def open(self, method: str, path: str, *, retry: bool = True, **content: Any) -> Iterator[httpx.Response]:
        """Send a request; the body of the answer can be read within the block.

        Raises: ServiceRefused, ServiceUnreachable; ValueError if a header cannot be sent.
        """
        try:
            response = self.send_until_accepted(method, path, retry=retry and self.retry, **content)
            try:
                yield response
            finally:
                response.close()
        except httpx.LocalProtocolError:
            # Its text has the header, which may be a secret.
            raise ValueError("a key or handle has characters that a header cannot hold") from None
        except httpx.RequestError as error:
            cause = str(error) or type(error).__name__
            raise ServiceUnreachable(
                f"{self.url}: no answer ({cause}); start the service, or allow more than {self.timeout:g} s"
            ) from error

    def send_until_accepted(self, method: str, path: str, *, retry: bool, **content: Any) -> httpx.Response:
        """Send a request, again after each refusal that says when to, as long as the time-out allows it; and once more
        if the connection closes without an answer, and a repetition does no harm.
        """
        deadline = time.monotonic() + self.timeout
        may_repeat = retry and (method == "GET" or (method == "POST" and not path.startswith(LEAVING_SOMETHING)))
        while True:
            try:
                response = self.http.send(self.http.build_request(method, path, **content), stream=True)
            except LOST:
                # Once: a picture at which replicas die would kill them one after another.
                if not may_repeat:
                    raise
                may_repeat = False
                continue
            if response.is_success:
                return response
            refused = read_refusal(response)
            pause = refused.retry_after
            if not retry or refused.status not in RETRIED_STATUSES or pause is None:
                raise refused
            if time.monotonic() + pause > deadline:
                raise refused
            time.sleep(pause)


def read_url(url: str) -> httpx.URL:
    """Read the address of a service.

    Raises: ValueError.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL()
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo:
        raise ValueError("url: name the service as http://HOST:PORT or https://HOST, without user and password")
    return parsed


def read_refusal(response: httpx.Response) -> ServiceRefused:
    """Read and close an answer that is a refusal."""
    try:
        response.read()
    finally:
        response.close()
    stated = response.headers.get("retry-after", "")
    return read_problem(read_json(response), response.status_code, float(stated) if stated.isdigit() else None)


def read_json(response: httpx.Response) -> Any:
    """Read the JSON of an answer; None if it has none."""
    try:
        return response.json()
    except ValueError:
        return None

"""The files of the page and their headers, without a browser."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlsplit

import pytest

from fusionray.serving.http.static_page import FILES, FOLDER, page_headers


def get(
    address: str, path: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    """Request a path verbatim: other clients remove `..`."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    try:
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("path", sorted(FILES))
def test_every_file_comes_with_strict_headers(base_url: str, path: str) -> None:
    answer, content = get(base_url, path)
    assert answer.status == 200
    assert content == (FOLDER / FILES[path][0]).read_bytes()
    assert answer.headers["content-type"] == FILES[path][1]
    assert answer.headers["content-security-policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]
    assert get(base_url, path, "HEAD")[0].status == 200
    assert get(base_url, path, "POST")[0].status == 405


@pytest.mark.parametrize("known", ["{tag}", 'W/{tag}, "other"', "*"])
def test_a_cached_file_is_not_sent_again(base_url: str, known: str) -> None:
    tag = get(base_url, "/page/page.css")[0].headers["etag"]
    again, content = get(base_url, "/page/page.css", headers={"If-None-Match": known.format(tag=tag)})
    assert (again.status, content) == (304, b"")
    assert again.headers["content-security-policy"] == page_headers()["Content-Security-Policy"]
    assert get(base_url, "/page/page.css", headers={"If-None-Match": '"other"'})[0].status == 200


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/page.py", "/page/../page.py", "/page/%2e%2e/page.py", "/page/..%2fpage.py", "/page//etc/passwd"],
)
def test_other_files_cannot_be_requested(base_url: str, path: str) -> None:
    assert get(base_url, path)[0].status == 404


def test_every_file_of_the_folder_is_served_and_names_no_other_host() -> None:
    served = {name for name, _ in FILES.values()}
    assert served == {path.name for path in FOLDER.iterdir()}
    for name in served:
        text = (FOLDER / name).read_text(encoding="utf-8")
        others = re.findall(r"(?:https?:)?//[a-z][a-z.]+\.[a-z]{2,}[^\s\"']*", text)
        assert set(others) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"localStorage|sessionStorage|indexedDB|document\.cookie|innerHTML|eval\(", text)

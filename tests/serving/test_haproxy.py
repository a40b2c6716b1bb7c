from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from ray.serve._private.constants import (
    SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
    SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
    SERVE_MULTIPLEXED_MODEL_ID,
    SERVE_SESSION_ID,
)
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from fusionray.serving.haproxy import CONTROL_HEADERS, ERRORS, find_binary, harden, rewrite

LOOSE = """global
    tune.bufsize 262144
    stats socket /run/a.sock mode 666 level admin expose-fd listeners
    stats timeout 30s
defaults
    mode http
    timeout connect 5s
    timeout client 75s
    timeout server 75s
    errorfile 502 /run/500.http
    errorfile 503 /run/500.http
    errorfile 504 /run/500.http
    retry-on conn-failure empty-response
    retries 2
frontend prometheus
    bind :29101
    mode http
frontend http_frontend
    bind 127.0.0.1:28000
    default_backend app
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path \\'%[path]\\' not found."
backend app
    server a 127.0.0.1:28001
listen stats
    bind *:28404
    stats enable
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "haproxy.cfg"
    path.write_text(LOOSE.replace("/run", str(tmp_path)))
    rewrite(path)
    return path


def test_haproxy_accepts_the_stricter_configuration(written: Path) -> None:
    found = subprocess.run(
        [find_binary(), "-c", "-f", str(written)], capture_output=True, text=True, timeout=30, check=False
    )
    assert found.returncode == 0, found.stderr


def test_metrics_and_statistics_have_no_port(written: Path) -> None:
    binds = [line.split()[1] for line in written.read_text().splitlines() if line.strip().startswith("bind ")]
    assert binds == [f"unix@{written.parent}/p.sock", "127.0.0.1:28000", f"unix@{written.parent}/s.sock"]
    assert "mode 600 level admin" in written.read_text()


@pytest.mark.parametrize(
    ("given", "host", "bound"),
    [
        ("*:8000", None, "*:8000"),
        ("10.0.0.5:8000", None, "10.0.0.5:8000"),
        ("127.0.0.1:8000", "0.0.0.0", "0.0.0.0:8000"),
        ("127.0.0.1:8000", "10.0.0.5", "10.0.0.5:8000"),
        ("127.0.0.1:8000", "::", "[::]:8000 v4v6"),
    ],
)
def test_the_service_listens_on_the_address_that_it_is_given(given: str, host: str | None, bound: str) -> None:
    text = LOOSE.replace("bind 127.0.0.1:28000", f"bind {given}")
    assert f"frontend http_frontend\n    bind {bound}\n" in harden(text, Path("/x"), host)
    assert harden(harden(text, Path("/x"), host), Path("/x"), host) == harden(text, Path("/x"), host)


def test_refusals_are_problem_documents_and_never_a_500(written: Path) -> None:
    assert "/500.http" not in written.read_text()
    for status, (shown, reason, _) in ERRORS.items():
        assert f"    errorfile {status} {written.parent}/problem-{status}.http\n" in written.read_text()
        head, _, body = (written.parent / f"problem-{status}.http").read_bytes().partition(b"\r\n\r\n")
        document = json.loads(body)
        assert head.startswith(f"HTTP/1.1 {shown} ".encode())
        assert f"Content-Length: {len(body)}".encode() in head
        assert (document["status"], document["reason"]) == (shown, reason)


def test_slow_requests_time_out_and_only_repeatable_ones_are_retried(written: Path) -> None:
    assert "timeout http-request 15s" in written.read_text()
    fits = "{ req.hdr_val(content-length) gt 0 } { req.hdr_val(content-length) le 245760 }"
    assert f"http-request wait-for-body time 15s if {fits}\n" in written.read_text()
    assert "disable-l7-retry if METH_POST { path /v1/jobs /v1/stylize/jobs }" in written.read_text()


def test_plain_text_answers_of_ray_become_problem_documents(written: Path) -> None:
    assert "text/plain" not in written.read_text()
    assert written.read_text().count("return status 404 default-errorfiles") == 2


def test_control_headers_of_ray_serve_are_removed() -> None:
    names = (
        SERVE_MULTIPLEXED_MODEL_ID,
        SERVE_SESSION_ID,
        SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
        SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
    )
    for name in names:
        assert re.fullmatch(CONTROL_HEADERS, name)
        assert re.fullmatch(CONTROL_HEADERS, name.replace("_", "-"))
        assert re.fullmatch(CONTROL_HEADERS, name.replace("-", "_"))


def test_a_second_rewrite_changes_nothing(written: Path) -> None:
    once = written.read_text()
    rewrite(written)
    assert written.read_text() == once


def test_the_configuration_of_ray_has_the_expected_form() -> None:
    for line in (
        "bind :{{ config.metrics_port }}",
        "bind *:{{ config.stats_port }}",
        "errorfile 503 ",
        "mode 666 level admin",
    ):
        assert line in HAPROXY_CONFIG_TEMPLATE
    assert "frontend http_frontend\n    bind {{ config.frontend_host }}" in HAPROXY_CONFIG_TEMPLATE


def test_a_service_that_is_not_running_is_answered_503_and_not_404(written: Path) -> None:
    backend = written.read_text().partition("backend default_backend\n")[2]
    assert backend.strip().startswith("http-request return status 503 default-errorfiles")

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

from fusionray.serving.haproxy import ERRORS, STEERING, find_binary, harden, rewrite

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


def test_the_stricter_configuration_is_one_that_haproxy_takes(written: Path) -> None:
    found = subprocess.run(
        [find_binary(), "-c", "-f", str(written)], capture_output=True, text=True, timeout=30, check=False
    )
    assert found.returncode == 0, found.stderr


def test_what_is_not_for_clients_listens_on_loopback_only(written: Path) -> None:
    binds = [line.split()[1] for line in written.read_text().splitlines() if line.strip().startswith("bind ")]
    assert binds == ["127.0.0.1:29101", "127.0.0.1:28000", "127.0.0.1:28404"]
    assert "mode 600 level admin" in written.read_text()


def test_where_the_service_itself_listens_is_left_alone() -> None:
    assert "    bind 0.0.0.0:8000\n" in harden("frontend http_frontend\n    bind 0.0.0.0:8000\n", Path("/x"))


def test_refusals_are_problem_documents_and_never_a_500(written: Path) -> None:
    assert "/500.http" not in written.read_text()
    for status, (shown, reason, _) in ERRORS.items():
        assert f"    errorfile {status} {written.parent}/problem-{status}.http\n" in written.read_text()
        head, _, body = (written.parent / f"problem-{status}.http").read_bytes().partition(b"\r\n\r\n")
        document = json.loads(body)
        assert head.startswith(f"HTTP/1.1 {shown} ".encode())
        assert f"Content-Length: {len(body)}".encode() in head
        assert (document["status"], document["reason"]) == (shown, reason)


def test_what_trickles_in_is_given_up_and_only_what_may_be_is_sent_again(written: Path) -> None:
    assert "timeout http-request 15s" in written.read_text()
    fits = "{ req.hdr_val(content-length) gt 0 } { req.hdr_val(content-length) le 245760 }"
    assert f"http-request wait-for-body time 15s if {fits}\n" in written.read_text()
    assert "disable-l7-retry if METH_POST { path /v1/jobs }" in written.read_text()


def test_what_ray_would_say_in_plain_text_is_a_problem_document(written: Path) -> None:
    assert "text/plain" not in written.read_text()
    assert written.read_text().count("return status 404 default-errorfiles") == 2


def test_words_that_would_steer_ray_serve_are_taken_off() -> None:
    names = (
        SERVE_MULTIPLEXED_MODEL_ID,
        SERVE_SESSION_ID,
        SERVE_HTTP_REQUEST_TIMEOUT_S_HEADER,
        SERVE_HTTP_REQUEST_DISCONNECT_DISABLED_HEADER,
    )
    for name in names:
        assert re.fullmatch(STEERING, name)
        assert re.fullmatch(STEERING, name.replace("_", "-"))
        assert re.fullmatch(STEERING, name.replace("-", "_"))


def test_doing_it_again_changes_nothing(written: Path) -> None:
    once = written.read_text()
    rewrite(written)
    assert written.read_text() == once


def test_what_ray_writes_still_looks_as_we_expect() -> None:
    for line in (
        "bind :{{ config.metrics_port }}",
        "bind *:{{ config.stats_port }}",
        "errorfile 503 ",
        "mode 666 level admin",
    ):
        assert line in HAPROXY_CONFIG_TEMPLATE
    assert "frontend http_frontend\n    bind {{ config.frontend_host }}" in HAPROXY_CONFIG_TEMPLATE


def test_a_service_that_is_not_there_is_said_to_come_and_not_to_be_unknown(written: Path) -> None:
    backend = written.read_text().partition("backend default_backend\n")[2]
    assert backend.strip().startswith("http-request return status 503 default-errorfiles")

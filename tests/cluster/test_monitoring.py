"""Scrape configurations, rules and dashboards, checked by the tools of Prometheus, and by a cluster that works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from cluster.monitoring.draw_dashboards import draw_dashboards, fill_legend, fill_query
from cluster.monitoring.make_dashboards import build_all
from fusionray.ray_cluster.connection import find_free_port
from fusionray.serving.auth.key_file import add_key
from fusionray.serving.http.metrics_page import FAMILIES
from tests.cluster.monitoring import (
    CONFIGS,
    MONITORING,
    NEEDS_A_GPU,
    Prometheus,
    find_series,
    list_queries,
    list_rules,
    needs_prometheus,
    run,
    scrape,
)
from tests.faults.driver import Driver, wait_until
from tests.faults.local_nodes import LocalNodes
from tests.safety.certificates import Authority, write_files
from tests.support.child_python import ROOT, run_python
from tests.support.pictures import draw_person
from tests.support.serving import encode
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.tiny_run import write_run
from tests.tuning.tiny_search import write_search

# Half of the default, for every process, the drivers too: agents of nodes drop what does not come in two intervals.
OFTEN = {"RAY_metrics_report_interval_ms": "5000"}
SERVE = """
import sys
from fusionray.config import load_config
from fusionray.ray_cluster.connection import cluster
from fusionray.serving.application import run
from fusionray.serving.config import ServeConfig
with cluster("auto"):
    run(load_config(ServeConfig, file=sys.argv[1]), "127.0.0.1", int(sys.argv[2]), blocking=False)
"""


@needs_prometheus
@pytest.mark.parametrize("config", CONFIGS)
def test_configurations_and_rules_are_valid(config: str, tmp_path: Path) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    # The key of the service, which promtool wants to see.
    key, file = tmp_path / "fusionray.key", tmp_path / config
    key.write_text("fr_key")
    file.write_text(file.read_text().replace("/etc/prometheus-key/fusionray.key", str(key)))
    checked = run("promtool", "check", "config", config, folder=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(list_rules())} rules found" in checked.stdout


@needs_prometheus
def test_each_alert_fires_where_it_must_and_only_there() -> None:
    tried = run("promtool", "test", "rules", "rules-test.yaml")
    assert tried.returncode == 0, tried.stdout + tried.stderr


def test_each_alert_is_tried_and_says_what_to_do() -> None:
    tried = (MONITORING / "rules-test.yaml").read_text()
    alerts = [rule for rule in list_rules() if "alert" in rule]
    assert len(alerts) > 15
    for rule in alerts:
        assert f'alertname="{rule["alert"]}"' in tried, rule["alert"]
        assert set(rule["annotations"]) == {"summary", "remedy"}
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.skipif(shutil.which("amtool") is None, reason="amtool is missing: apt-get install prometheus-alertmanager")
def test_who_is_told_is_valid() -> None:
    checked = run("amtool", "check-config", "alertmanager.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    routed = run("amtool", "config", "routes", "test", "--config.file=alertmanager.yaml", "severity=critical")
    assert routed.stdout.strip() == "operators"


def test_dashboards_are_those_that_the_script_makes() -> None:
    written = {file.stem: file.read_text() for file in (MONITORING / "dashboards").iterdir()}
    assert written == build_all()


@needs_prometheus
def test_queries_of_dashboards_can_be_parsed(tmp_path: Path) -> None:
    rules = [{"record": "a", "expr": query} for query in list_queries().values()]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    checked = run("promtool", "check", "rules", "--lint=none", "queries.yaml", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_page_of_a_service_has_what_rules_and_dashboards_ask_for() -> None:
    wanted = {name for name in find_series() if not name.startswith("DCGM_") and name != "up"}
    assert {name for name in wanted if not name.startswith(FAMILIES)} == set()


def start_service(folder: Path, nodes: LocalNodes) -> tuple[str, str]:
    """Start a service with a certificate and an expiring key on the nodes; return its address and that key."""
    write_tiny_bundle(folder / "bundle")
    authority, private = Authority(), generate_private_key(SECP256R1())
    signing = write_files(folder, private, authority.issue(private, ends=timedelta(days=10)), authority.certificate)
    key = add_key(folder / "keys.yaml", "studio", expires="2100-01-31")
    config = {
        "models": [{"name": "default", "bundle": str(folder / "bundle")}],
        "ingress": {"num_replicas": 1, "cpus": 1},
        "keys": {"file": str(folder / "keys.yaml")},
        "signing": signing.model_dump(mode="json"),
    }
    (folder / "serve.yaml").write_text(yaml.safe_dump(config))
    port = find_free_port()
    run_python("-c", SERVE, str(folder / "serve.yaml"), str(port), **nodes.environment)
    return f"http://127.0.0.1:{port}", key


def fuse(url: str, key: str) -> None:
    """Fuse two faces, and send what is no picture."""
    source, target = encode(draw_person(0)), encode(draw_person(1))
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        for _ in range(5):
            answer = client.post("/v1/fuse", files={"source": source, "target": target})
            assert answer.status_code == 200, answer.text
        assert client.post("/v1/fuse", files={"source": b"none", "target": target}).status_code == 415


def search(folder: Path, nodes: LocalNodes) -> None:
    """Search with two trials, on the nodes."""
    command = [sys.executable, "-m", "fusionray.cli", "tune", "--config", str(write_search(folder))]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "platform"), **nodes.environment, **OFTEN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def check_queries(prometheus: Prometheus, started: float) -> None:
    """Every query of a dashboard has had an answer, but those that need a GPU."""
    span = {"start": started, "end": time.time(), "step": 5}
    silent = {
        name
        for name, query in list_queries().items()
        if not NEEDS_A_GPU.search(query) and not prometheus.ask("query_range", query=query, **span)["result"]
    }
    assert not silent


def check_drawings(url: str, minutes: float) -> None:
    """Every panel is drawn with lines, but those of a GPU."""
    described = yaml.safe_load((MONITORING / "dashboards.yaml").read_text())
    panels = {panel["title"]: panel for dashboard in described.values() for panel in dashboard["panels"]}
    charts = [chart for section in draw_dashboards(url, minutes) for chart in section.parts]
    assert len(charts) == sum(len(dashboard["panels"]) for dashboard in described.values())
    empty = {chart.title for chart in charts if "<polyline" not in chart.svg}
    assert all(NEEDS_A_GPU.search(query) for title in empty for query in panels[title]["queries"])


def test_legends_and_variables_of_grafana_are_filled() -> None:
    assert fill_legend("{{run}} rank {{ rank }}", {"run": "first", "rank": "0"}) == "first rank 0"
    assert fill_legend("rows", {}) == "rows"
    assert fill_query('a{run=~"$run"} / b{run=~"$run"}', "run") == 'a{run=~".*"} / b{run=~".*"}'
    assert fill_query("up", None) == "up"


@needs_prometheus
@pytest.mark.slow(seconds=95)
@pytest.mark.starts_ray
@pytest.mark.timeout(600)
def test_a_cluster_that_trains_searches_and_serves_has_every_series(tmp_path: Path) -> None:
    (tmp_path / "searched").mkdir()
    with LocalNodes(1, 5, environment=OFTEN) as nodes:
        discovery = nodes.folder / "0" / "ray" / "prom_metrics_service_discovery.json"
        started = time.time()
        with scrape(discovery, tmp_path) as prometheus:
            url, key = start_service(tmp_path, nodes)
            fuse(url, key)
            training = Driver(
                write_run(tmp_path, tmp_path / "runs", workers={"num_workers": 2}),
                nodes.environment["RAY_TMPDIR"],
                environment=nodes.environment | OFTEN,
            )
            training.start()
            assert training.wait(240) == 0, training.log
            search(tmp_path / "searched", nodes)
            fuse(url, key)
            wanted = {name for name in find_series() if not NEEDS_A_GPU.fullmatch(name)}
            recorded = {rule["record"] for rule in list_rules() if "record" in rule}
            wait_until("every series", lambda: wanted | recorded <= prometheus.names(), 60)
            check_queries(prometheus, started)
            check_drawings(str(prometheus.client.base_url.copy_with(path="/")), (time.time() - started) / 60)
            expires = prometheus.ask("query", query="ray_fusionray_certificate_expiry_timestamp_seconds - time()")
            assert 9.9 * 86400 < float(expires["result"][0]["value"][1]) < 10 * 86400
            rules = prometheus.ask("rules")["groups"]
            assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
            firing = {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}
            # The certificate, by its end; the disk and the memory are those of this machine.
            assert firing - {"DiskFillsUp", "MemoryFillsUp"} == {"CertificateExpires"}

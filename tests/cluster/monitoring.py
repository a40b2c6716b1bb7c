"""The files of `cluster/monitoring` as tests read them, and a real Prometheus that scrapes."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from fusionray.ray_cluster.connection import find_free_port
from tests.cluster.manifests import ROOT
from tests.faults.driver import wait_until

MONITORING = ROOT / "cluster" / "monitoring"
CONFIGS = ("prometheus-cluster.yaml", "prometheus-service.yaml", "prometheus-compose.yaml")
# A name of a series: those of Ray, of NVIDIA's exporter, of Prometheus itself; those with colons are recorded.
SERIES = re.compile(r"\b(ray_\w+|DCGM_\w+|up)\b")
NEEDS_A_GPU = re.compile(r"DCGM_\w+|ray_node_(gpus?|gram)_\w+")

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is missing: apt-get install prometheus"
)


def run(*command: str, folder: Path = MONITORING) -> subprocess.CompletedProcess[str]:
    """Run a checker in a folder."""
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def list_rules() -> list[dict[str, Any]]:
    """List the recording and alert rules."""
    groups = yaml.safe_load((MONITORING / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def list_queries() -> dict[str, str]:
    """Map dashboard, panel and letter to a query; variables of a dashboard stand for everything."""
    found = {}
    for file in sorted((MONITORING / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                name = f"{file.stem}, {panel['title']}, {target['refId']}"
                found[name] = re.sub(r"\$(run|search|model)\b", ".*", target["expr"])
    return found


def find_series() -> set[str]:
    """Find the names of all series that rules and dashboards ask for."""
    texts = [*(rule["expr"] for rule in list_rules()), *list_queries().values()]
    return {name for text in texts for name in SERIES.findall(text)}


class Prometheus:
    """A Prometheus with the rules of this project."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=f"{url}/api/v1", timeout=30)

    def ask(self, path: str, **parameters: str | float) -> Any:
        """Ask its API; return the data of the answer."""
        answer = self.client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def names(self) -> set[str]:
        """List the series that it has."""
        return set(self.ask("label/__name__/values"))


@contextlib.contextmanager
def scrape(discovery: Path, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus as `prometheus-cluster.yaml` says, every second, on the nodes that a file of Ray names."""
    config = yaml.safe_load((MONITORING / "prometheus-cluster.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(MONITORING / "rules.yaml")]
    config["scrape_configs"][0]["file_sd_configs"][0]["files"] = [str(discovery)]
    file, port = folder / "prometheus.yaml", find_free_port()
    file.write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'series'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/-/ready").status_code == 200
        return False

    try:
        wait_until("an answer of Prometheus", is_ready, 30)
        prometheus = Prometheus(url)
        with prometheus.client:
            yield prometheus
    finally:
        process.terminate()
        process.wait()

"""`/metrics`: the Prometheus series of the service from every node of its Ray cluster, on one page.

Each Ray node exports its series on a port that changes with every start. A scraper of this page needs to know none of
these ports.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterable

import ray

# Series of this service, of Ray Serve, and of the load of the nodes and their GPUs.
FAMILIES = ("ray_fusionray_", "ray_serve_", "ray_node_")
TIMEOUT_SECONDS = 3.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def collect_metrics() -> str:
    """Fetch the series of every node and merge them; a node that does not answer is left out and counted."""
    loop = asyncio.get_running_loop()
    nodes = await loop.run_in_executor(None, list_exporters)
    pages = await asyncio.gather(*(loop.run_in_executor(None, fetch, node) for node in nodes))
    silent = sum(page is None for page in pages)
    text = merge_pages(page for page in pages if page is not None)
    return (
        f"{text}# HELP fusionray_silent_nodes Nodes that did not answer for this page.\n"
        f"# TYPE fusionray_silent_nodes gauge\nfusionray_silent_nodes {silent}\n"
    )


def list_exporters() -> list[str]:
    """List the addresses at which the nodes export their series."""
    return [
        f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        for node in ray.nodes()
        if node["Alive"] and node.get("MetricsExportPort")
    ]


def fetch(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - a node of our own Ray
            page: str = answer.read().decode()
    except (OSError, ValueError):
        return None
    return page


def merge_pages(pages: Iterable[str]) -> str:
    """Merge pages, each family described once and followed by its series; drop other families."""
    described: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for page in pages:
        for family, lines in split_page(page).items():
            described.setdefault(family, [line for line in lines if line.startswith("#")])
            series.setdefault(family, []).extend(line for line in lines if not line.startswith("#"))
    return "".join(f"{line}\n" for family in sorted(described) for line in (*described[family], *series[family]))


def split_page(page: str) -> dict[str, list[str]]:
    """Split a page by family; a `# HELP` line starts a family."""
    families: dict[str, list[str]] = {}
    current = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
        if current.startswith(FAMILIES) and line:
            families.setdefault(current, []).append(line)
    return families

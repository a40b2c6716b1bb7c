"""`/metrics`: the series of the service from every node of its Ray, on one page.

Ray exports what its processes measure on a port of each node that changes with every start; who scrapes this page needs
to know none of them.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Iterable

import ray

# What this service counts, what Ray Serve counts of it, and what the GPUs are loaded with.
FAMILIES = ("ray_fusionray_", "ray_serve_", "ray_node_gpus_utilization", "ray_node_gram_")
TIMEOUT_SECONDS = 3.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def collect_metrics() -> str:
    """Ask every node, and put together what they say; a node that does not answer is left out and counted."""
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
    """List where the nodes export their series."""
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
    """Put pages together, each family described once and its series side by side; other families are left out."""
    described: dict[str, list[str]] = {}
    series: dict[str, list[str]] = {}
    for page in pages:
        for family, lines in split_page(page).items():
            described.setdefault(family, [line for line in lines if line.startswith("#")])
            series.setdefault(family, []).extend(line for line in lines if not line.startswith("#"))
    return "".join(f"{line}\n" for family in sorted(described) for line in (*described[family], *series[family]))


def split_page(page: str) -> dict[str, list[str]]:
    """Split a page by family: the name in the line that describes it, under which its series stand."""
    families: dict[str, list[str]] = {}
    current = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
        if current.startswith(FAMILIES) and line:
            families.setdefault(current, []).append(line)
    return families

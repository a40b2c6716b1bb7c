"""Draw the dashboards without Grafana: each panel of dashboards.yaml, from what Prometheus has, as one page.

python cluster/monitoring/draw_dashboards.py http://127.0.0.1:9090 --output runs/dashboards --minutes 60
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from fusionray.reporting.charts import ChartLine, LineKind, draw_lines
from fusionray.reporting.page import Page, PageSection, save_page
from fusionray.reporting.parts import Chart

HERE = Path(__file__).parent
UNITS = {"percentunit": "share", "s": "s", "ms": "ms", "bytes": "bytes", "reqps": "1/s"}
KINDS: tuple[LineKind, ...] = ("main", "second", "other")
# Points of a line, and lines of a panel: more cannot be told apart.
POINTS, MOST_LINES = 120, 8


def fill_query(query: str, variable: str | None) -> str:
    """Replace the variable of a dashboard, which stands for everything."""
    return query if variable is None else query.replace(f"${variable}", ".*")


def fill_legend(legend: str, labels: Mapping[str, str]) -> str:
    """Fill a legend of Grafana, such as `{{run}} rank {{rank}}`, with the labels of a series."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), legend).strip()


def ask(client: httpx.Client, query: str, minutes: float) -> list[dict[str, Any]]:
    """Ask Prometheus for the series of a query over the last minutes.

    Raises: httpx.HTTPError.
    """
    end = time.time()
    span = {"start": end - 60 * minutes, "end": end, "step": max(1.0, 60 * minutes / POINTS)}
    answer = client.get("/api/v1/query_range", params={"query": query, **span}).raise_for_status()
    found: list[dict[str, Any]] = answer.json()["data"]["result"]
    return found


def draw_panel(
    name: str, panel: Mapping[str, Any], variable: str | None, client: httpx.Client, minutes: float
) -> Chart:
    """Draw a panel: a line for each series, over the minutes before now."""
    lines: list[ChartLine] = []
    now = time.time()
    for query, legend in panel["queries"].items():
        for series in ask(client, fill_query(query, variable), minutes):
            points = [((float(at) - now) / 60, float(value)) for at, value in series["values"]]
            kind = KINDS[min(len(lines), len(KINDS) - 1)]
            lines.append(ChartLine(points, fill_legend(legend, series["metric"]), kind, dotted=len(lines) > 2))
    left = f"{len(lines) - MOST_LINES} more lines" if len(lines) > MOST_LINES else ""
    caption = left if lines else "no data"
    unit = UNITS.get(panel.get("unit", ""), panel.get("unit", ""))
    drawing = draw_lines(lines[:MOST_LINES], title=panel["title"], x_label="minutes before now", y_label=unit)
    return Chart(name, panel["title"], drawing, caption)


def draw_dashboards(url: str, minutes: float) -> Iterator[PageSection]:
    """Draw all dashboards, a section each."""
    described = yaml.safe_load((HERE / "dashboards.yaml").read_text())
    with httpx.Client(base_url=url, timeout=30) as client:
        for name, dashboard in described.items():
            variable = dashboard.get("variable", {}).get("name")
            charts: Sequence[Chart] = [
                draw_panel(f"{name}-{number}", panel, variable, client, minutes)
                for number, panel in enumerate(dashboard["panels"], start=1)
            ]
            yield PageSection(name.capitalize(), charts, columns=True)


def main() -> None:
    """Draw into a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of Prometheus")
    parser.add_argument("--output", type=Path, required=True, help="folder of report.html and the charts")
    parser.add_argument("--minutes", type=float, default=60, help="how far back (60)")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    sections = list(draw_dashboards(options.url, options.minutes))
    save_page(
        options.output, Page("Dashboards", sections=sections, origin=f"{options.url}, {options.minutes:g} minutes")
    )
    print(options.output / "report.html")


if __name__ == "__main__":
    main()

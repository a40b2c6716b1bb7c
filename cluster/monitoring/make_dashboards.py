"""Write the dashboards of Grafana, dashboards/*.json, from dashboards.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

HERE = Path(__file__).parent
# Two panels beside each other: Grafana divides a dashboard into 24 columns.
WIDTH, HEIGHT = 12, 8
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")


def build_panel(panel: Mapping[str, Any]) -> stat.Panel | timeseries.Panel:
    """Build a panel of Grafana."""
    lines = panel.get("lines")
    built: stat.Panel | timeseries.Panel
    if lines == "none":
        built = stat.Panel()
    else:
        built = timeseries.Panel().fill_opacity(30 if lines == "stacked" else 0)
        if lines == "stacked":
            built.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    built.title(panel["title"]).unit(panel.get("unit", "none")).datasource(SOURCE).span(WIDTH).height(HEIGHT)
    for letter, (query, legend) in zip("ABCDEF", panel["queries"].items(), strict=False):
        built.with_target(prometheus.Dataquery().expr(query).legend_format(legend).ref_id(letter))
    return built


def build(name: str, described: Mapping[str, Any]) -> str:
    """Return the JSON of a dashboard."""
    built = dashboard.Dashboard(f"fusionray {name}").uid(f"fusionray-{name}").tags(["fusionray"])
    built.refresh("15s").time("now-1h", "now")
    built.with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    if "variable" in described:
        label, series = described["variable"]["name"], described["variable"]["series"]
        variable = dashboard.QueryVariable(label).datasource(SOURCE).query(f"label_values({series}, {label})")
        built.with_variable(variable.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).multi(True).include_all(True))
    for panel in described["panels"]:
        built.with_panel(build_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build()) + "\n"


def build_all() -> dict[str, str]:
    """Build all dashboards, by their names."""
    described = yaml.safe_load((HERE / "dashboards.yaml").read_text())
    return {name: build(name, each) for name, each in described.items()}


if __name__ == "__main__":
    for name, text in build_all().items():
        (HERE / "dashboards" / f"{name}.json").write_text(text)

"""Write the dashboards of Grafana into dashboards/: python cluster/monitoring/make_dashboards.py

Series of a GPU come from Ray, those named DCGM_* from NVIDIA's exporter; their panels are empty without one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import DataSourceRef, VariableRefresh

FOLDER = Path(__file__).parent / "dashboards"
# Grafana divides a dashboard into 24 columns.
WIDTH, HEIGHT = 12, 8
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")


@dataclass(frozen=True)
class Panel:
    """One panel: its queries with their legends, in a unit of Grafana.

    `stacked`: lines above each other, of parts of a whole. `number`: the newest value instead of lines.
    """

    title: str
    unit: str
    queries: dict[str, str]
    stacked: bool = False
    number: bool = False


@dataclass(frozen=True)
class Dashboard:
    """A dashboard; `variable` (name, series) lets its reader choose values of a label, which queries name `$name`."""

    title: str
    panels: list[Panel] = field(default_factory=list)
    variable: tuple[str, str] | None = None


OF_RUN = '{run=~"$run"}'
OF_SEARCH = '{search=~"$search"}'
OF_MODEL = '{model=~"$model"}'

TRAINING = Dashboard(
    "fusionray training",
    variable=("run", "ray_fusionray_train_images_seen"),
    panels=[
        Panel(
            "Progress",
            "percentunit",
            {
                f"max by (run) (ray_fusionray_train_images_seen{OF_RUN})"
                f" / max by (run) (ray_fusionray_train_images_budget{OF_RUN})": "{{run}}"
            },
            number=True,
        ),
        Panel(
            "Age of the newest checkpoint",
            "s",
            {f"time() - max by (run) (ray_fusionray_train_last_checkpoint_timestamp_seconds{OF_RUN})": "{{run}}"},
            number=True,
        ),
        Panel("Images per second", "none", {f"run:fusionray_train_images_per_second:sum{OF_RUN}": "{{run}}"}),
        Panel("Losses", "none", {f"ray_fusionray_train_loss{OF_RUN}": "{{run}} {{loss}}"}),
        Panel(
            "What a step consists of",
            "percentunit",
            {f"avg by (part) (ray_fusionray_train_step_share{OF_RUN})": "{{part}}"},
            stacked=True,
        ),
        Panel(
            "Exchange of gradients, hidden or not",
            "percentunit",
            {f"ray_fusionray_train_communication_share{OF_RUN}": "{{run}} rank {{rank}}"},
        ),
        Panel("Time of a step", "s", {f"ray_fusionray_train_step_seconds{OF_RUN}": "{{run}} rank {{rank}}"}),
        Panel("Peak memory", "bytes", {f"ray_fusionray_train_memory_bytes{OF_RUN}": "{{run}} rank {{rank}}"}),
        Panel(
            "Skipped steps, replaced rows",
            "none",
            {
                f"ray_fusionray_train_skipped_steps{OF_RUN}": "{{run}} steps",
                f"ray_fusionray_train_replaced_rows{OF_RUN}": "{{run}} rows",
            },
        ),
        Panel(
            "Checkpoints",
            "none",
            {f"sum by (run, outcome) (ray_fusionray_train_checkpoints_total{OF_RUN})": "{{run}} {{outcome}}"},
        ),
    ],
)

TUNING = Dashboard(
    "fusionray tuning",
    variable=("search", "ray_fusionray_tune_trials"),
    panels=[
        Panel(
            "Trials that have ended",
            "percentunit",
            {
                'sum by (search) (ray_fusionray_tune_trials{status=~"finished|stopped|failed", search=~"$search"})'
                f" / max by (search) (ray_fusionray_tune_trials_budget{OF_SEARCH})": "{{search}}"
            },
            number=True,
        ),
        Panel(
            "Time", "s", {f"max by (search) (ray_fusionray_tune_spent_seconds{OF_SEARCH})": "{{search}}"}, number=True
        ),
        Panel("Trials", "none", {f"ray_fusionray_tune_trials{OF_SEARCH}": "{{search}} {{status}}"}, stacked=True),
        Panel("Best value", "none", {f"ray_fusionray_tune_best{OF_SEARCH}": "{{search}} {{metric}}"}),
        Panel("Images per second", "none", {"run:fusionray_train_images_per_second:sum": "{{run}}"}),
    ],
)

SERVING = Dashboard(
    "fusionray serving",
    variable=("model", "ray_fusionray_stage_ms_count"),
    panels=[
        Panel(
            "Requests per second",
            "reqps",
            {"sum by (route, status) (rate(ray_fusionray_http_requests_total[1m]))": "{{route}} {{status}}"},
            stacked=True,
        ),
        Panel(
            "Errors and refusals",
            "percentunit",
            {"fusionray_http_error_ratio": "errors", "fusionray_http_refusal_ratio": "refused, no room"},
        ),
        Panel(
            "Time of a request in the service",
            "ms",
            {
                f"histogram_quantile({share}, sum by (le, model) "
                '(rate(ray_fusionray_stage_ms_bucket{stage="total", model=~"$model"}[1m])))': f"{{{{model}}}} {name}"
                for share, name in ((0.5, "median"), (0.9, "9 of 10"), (0.99, "99 of 100"))
            },
        ),
        Panel(
            "Where the time goes",
            "ms",
            {
                'sum by (stage) (rate(ray_fusionray_stage_ms_sum{stage!="total", model=~"$model"}[1m])) / '
                'sum by (stage) (rate(ray_fusionray_stage_ms_count{stage!="total", model=~"$model"}[1m]))': "{{stage}}"
            },
            stacked=True,
        ),
        Panel(
            "Faces",
            "none",
            {
                f"sum by (model) (rate(ray_fusionray_faces_total{OF_MODEL}[1m]))": "{{model}} per second",
                f"sum by (model) (ray_fusionray_waiting_faces{OF_MODEL})": "{{model}} waiting",
            },
        ),
        Panel(
            "Faces of a batch",
            "none",
            {
                f"sum by (model) (rate(ray_fusionray_batch_faces_sum{OF_MODEL}[1m]))"
                f" / sum by (model) (rate(ray_fusionray_batch_faces_count{OF_MODEL}[1m]))": "{{model}}"
            },
        ),
        Panel(
            "Time of a batch",
            "ms",
            {
                f"sum by (model) (rate(ray_fusionray_batch_ms_sum{OF_MODEL}[1m]))"
                f" / sum by (model) (rate(ray_fusionray_batch_ms_count{OF_MODEL}[1m]))": "{{model}}"
            },
        ),
        Panel(
            "Replicas, requests inside",
            "none",
            {
                "sum by (deployment) (ray_serve_deployment_replica_healthy)": "{{deployment}}",
                "sum(ray_fusionray_requests_inside)": "requests",
            },
        ),
        Panel(
            "Refused pictures and other ends",
            "none",
            {'sum by (reason) (rate(ray_fusionray_requests_total{reason!=""}[5m]))': "{{reason}} per second"},
        ),
        Panel(
            "Until the certificate, and the next key, expire",
            "s",
            {
                "min(ray_fusionray_certificate_expiry_timestamp_seconds) - time()": "certificate",
                "min(ray_fusionray_key_expiry_timestamp_seconds) - time()": "key",
            },
            number=True,
        ),
    ],
)

HARDWARE = Dashboard(
    "fusionray hardware",
    panels=[
        Panel("GPU", "percent", {"ray_node_gpus_utilization": "{{instance}} {{GpuIndex}}"}),
        Panel(
            "Memory of GPUs",
            "decmbytes",
            {
                "ray_node_gram_used": "{{instance}} {{GpuIndex}}",
                "ray_node_gram_available": "{{instance}} {{GpuIndex}} free",
            },
        ),
        Panel("Temperature of GPUs", "celsius", {"ray_node_gpu_temperature_celsius": "{{instance}} {{GpuIndex}}"}),
        Panel("Power of GPUs", "watt", {"ray_node_gpu_power_milliwatts / 1000": "{{instance}} {{GpuIndex}}"}),
        Panel(
            "Faults of GPUs",
            "none",
            {
                "DCGM_FI_DEV_XID_ERRORS": "{{Hostname}} {{gpu}} XID",
                "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "{{Hostname}} {{gpu}} memory",
                "DCGM_FI_DEV_ROW_REMAP_FAILURE": "{{Hostname}} {{gpu}} remapped rows",
            },
        ),
        Panel("CPU", "percent", {"ray_node_cpu_utilization": "{{instance}}"}),
        Panel("Memory", "percentunit", {"ray_node_mem_used / ray_node_mem_total": "{{instance}}"}),
        Panel("Disk", "percent", {"ray_node_disk_utilization_percentage": "{{instance}}"}),
        Panel(
            "Network",
            "Bps",
            {"ray_node_network_receive_speed": "{{instance}} in", "ray_node_network_send_speed": "{{instance}} out"},
        ),
        Panel("Nodes that answer", "none", {'sum by (job) (up{job=~"ray|fusionray"})': "{{job}}"}, number=True),
    ],
)
DASHBOARDS = {"training": TRAINING, "tuning": TUNING, "serving": SERVING, "hardware": HARDWARE}


def build_panel(panel: Panel) -> stat.Panel | timeseries.Panel:
    """Build a panel of Grafana."""
    built: stat.Panel | timeseries.Panel
    if panel.number:
        built = stat.Panel()
    else:
        built = timeseries.Panel().fill_opacity(30 if panel.stacked else 0)
        if panel.stacked:
            built.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    built.title(panel.title).unit(panel.unit).datasource(SOURCE).span(WIDTH).height(HEIGHT)
    for letter, (expression, legend) in zip("ABCDEF", panel.queries.items(), strict=False):
        built.with_target(prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter))
    return built


def build(described: Dashboard) -> str:
    """Return the JSON of a dashboard."""
    uid = described.title.replace(" ", "-")
    built = dashboard.Dashboard(described.title).uid(uid).tags(["fusionray"]).refresh("15s").time("now-1h", "now")
    built.with_variable(dashboard.DatasourceVariable("source").label("Prometheus").type("prometheus"))
    if described.variable is not None:
        name, series = described.variable
        built.with_variable(
            dashboard.QueryVariable(name)
            .datasource(SOURCE)
            .query(f"label_values({series}, {name})")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
        )
    for panel in described.panels:
        built.with_panel(build_panel(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(built.build()) + "\n"


def main() -> None:
    """Write all dashboards."""
    FOLDER.mkdir(exist_ok=True)
    for name, described in DASHBOARDS.items():
        (FOLDER / f"{name}.json").write_text(build(described))


if __name__ == "__main__":
    main()

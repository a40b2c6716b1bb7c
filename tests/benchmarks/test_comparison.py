from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fusionray.benchmarks.comparison import add_comparison, compare, read_figures
from fusionray.benchmarks.findings import Findings, load_keys
from fusionray.benchmarks.results import BenchResult, write_result
from fusionray.benchmarks.tracking import EXPERIMENT, track
from fusionray.cli import main
from fusionray.errors import InputMissing
from fusionray.planning.config import ServicePlanConfig
from fusionray.reporting.figures import Figures
from fusionray.tracking.store import make_client

# Of each figure the rounds: one with a goal below, one with a goal above, one without.
BEFORE = {"scaling_2": [1.7, 1.8], "data_wait_share": [0.02, 0.03], "ceiling_2": [1.9, 2.0], "gpu_busy": [0.5]}


def write(folder: Path, values: dict[str, list[float]], bench: str = "train") -> BenchResult:
    folder.mkdir(exist_ok=True)
    return write_result(folder, bench, load_keys(bench), Findings(values=values))


def verdicts(before: Figures, now: Figures) -> dict[str, Any]:
    return {change.key: change.verdict for change in compare(before, now) if not change.key.startswith("machine_")}


def test_a_change_beyond_the_rounds_is_better_or_worse_by_the_side_of_its_goal(tmp_path: Path) -> None:
    before = write(tmp_path / "before", BEFORE).figures
    assert set(verdicts(before, before).values()) == {"same"}
    now = write(
        tmp_path / "now",
        {
            "scaling_2": [1.85, 1.9],
            "data_wait_share": [0.04, 0.05],
            "ceiling_2": [1.5, 1.6],
            "checkpoint_step_ratio": [1],
        },
    ).figures
    assert verdicts(before, now) == {
        "scaling_2": "better",
        "data_wait_share": "worse",
        "ceiling_2": "changed",
        "checkpoint_step_ratio": "only now",
        "gpu_busy": "only before",
    }
    assert verdicts(now, before)["scaling_2"] == "worse"


def test_rounds_that_overlap_are_the_same_and_single_figures_within_some_percent(tmp_path: Path) -> None:
    before = write(tmp_path / "before", BEFORE).figures
    near = write(tmp_path / "near", {**BEFORE, "scaling_2": [1.79, 2.0], "gpu_busy": [0.52]}).figures
    assert verdicts(before, near)["scaling_2"] == "same"
    assert verdicts(before, near)["gpu_busy"] == "same"
    far = write(tmp_path / "far", {**BEFORE, "gpu_busy": [0.6]}).figures
    assert verdicts(before, far)["gpu_busy"] == "better"


def test_the_comparison_is_printed_and_stands_in_the_report(tmp_path: Path) -> None:
    write(tmp_path / "before", BEFORE)
    before = read_figures(str(tmp_path / "before" / "figures.json"))
    result = write(tmp_path / "now", {**BEFORE, "scaling_2": [0.9, 1.0]})
    other = before.model_copy(update={"machine": "another one"})
    table = add_comparison(result, other).table
    assert "scaling_2" in table
    assert "worse" in table
    assert "Another machine: another one" in table
    page = (tmp_path / "now" / "report.html").read_text()
    assert "Compared with before" in page
    with pytest.raises(InputMissing, match="holds figures of bench-train, not of bench-serve"):
        add_comparison(write(tmp_path / "serve", {"throughput": [9.0]}, "serve"), before)


def test_what_cannot_be_compared_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for place, reason in ((tmp_path / "none.json", "No such file"), (wrong, "it is no figures.json")):
        assert main(["bench", "faces", "--output", str(tmp_path / "out"), "--compare", str(place)]) == 1
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sheet_shows_all_figures_as_a_picture(tmp_path: Path) -> None:
    from PIL import Image

    write(tmp_path, BEFORE)
    with Image.open(tmp_path / "figures.png") as picture:
        # Six figures, two of them of the machine.
        assert picture.size == (2 * 920, 2 * 34 * 8)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(2**20) or []}
    # What reaches its goal, and what misses it.
    assert {(0x17, 0x64, 0x30), (0xA3, 0x15, 0x1B)} <= colours


def test_every_benchmark_says_what_its_machine_can_do(tmp_path: Path) -> None:
    result = write(tmp_path, BEFORE)
    assert result.figures.figures["machine_gflops"].value > 1
    assert result.figures.figures["machine_copy_gbytes_per_second"].value > 0.5
    text = (tmp_path / "report.md").read_text()
    places = [
        text.index(title)
        for title in ("What users get", "What does not depend", "What the machine can do")
        if title in text
    ]
    assert len(places) == 2
    assert places == sorted(places)


def test_figures_settings_and_report_are_logged(tmp_path: Path) -> None:
    result = write(tmp_path / "now", BEFORE)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    track(result, uri, ServicePlanConfig(busy_share=0.5))
    track(result, uri, ServicePlanConfig(busy_share=0.6))
    client = make_client(uri)
    runs = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    assert len(runs) == 2, "each measurement is a run of its own"
    assert {run.data.params["settings.busy_share"] for run in runs} == {"0.5", "0.6"}
    assert runs[0].data.metrics["scaling_2"] == pytest.approx(1.75)
    names = {entry.path for entry in client.list_artifacts(runs[0].info.run_id)}
    assert names == {"figures.json", "figures.png", "report.html"}
    assert json.loads((tmp_path / "now" / "figures.json").read_text())["machine"] == json.loads(
        runs[0].data.params["machine"]
    )

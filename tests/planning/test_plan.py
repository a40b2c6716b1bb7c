from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fusionray.checkpoint.info import CheckpointInfo
from fusionray.checkpoint.writer import CheckpointWriter
from fusionray.cli import main
from fusionray.config import load_config
from fusionray.errors import CheckpointMissing, ConfigInvalid, InputMissing
from fusionray.planning.config import PlanConfig
from fusionray.planning.measured import read_run
from fusionray.planning.plan import ClusterPlan, make_plan
from fusionray.reporting.figures import MeasuredFigure, write_figures
from fusionray.training.config import BudgetConfig, DataConfig, EngineConfig, ParallelConfig, TrainConfig
from tests.support.tiny_fusion import SIZE, build_config
from tests.support.tiny_shards import write_tiny_shards

TIMING = {
    "time_step_ms": 50.0,
    "exposed_communication_share": 0.1,
    "share_data_wait": 0.1,
    "own_spread": 0.02,
    "num_workers": 2,
    "global_batch": 64,
    "save_stall_seconds": 0.5,
    "save_seconds": 4.0,
}
PARAMETERS = {"networks.generator.weight": (1000, 100), "networks.discriminator.weight": (50, 1000)}


def write_run(
    folder: Path, *, shards: Path | None = None, compression: str = "none", values: int = 1, **timing: float
) -> Path:
    """Write a run whose only checkpoint says what steps took."""
    config = TrainConfig(
        data=DataConfig(shards=str(shards or "nowhere"), size=SIZE),
        recipe=build_config(),
        engine=EngineConfig(global_batch=64, parallel=ParallelConfig(compression=compression)),  # type: ignore[arg-type]
        budget=BudgetConfig(images=1_000_000),
    )
    info = CheckpointInfo(
        config=config.model_dump(mode="json"),
        num_people=4,
        data_digest="d",
        images_seen=640,
        seconds=1.0,
        metrics={},
        timing={**TIMING, **timing},
    )
    tensors = {name: torch.zeros(values, *shape) for name, shape in PARAMETERS.items()}
    tensors |= {"averages.generator.weight": torch.zeros(1000, 100), "networks.generator.count": torch.tensor(3)}
    writer = CheckpointWriter(str(folder), keep=1)
    writer.begin(tensors, info)
    writer.close()
    return folder


def plan_for(run: Path, *settings: str) -> ClusterPlan:
    return make_plan(load_config(PlanConfig, overrides=[f"run={run}", "output=x", "simulation.failures=20", *settings]))


def test_a_run_says_what_a_step_took_and_what_its_state_weighs(tmp_path: Path) -> None:
    run = read_run(str(write_run(tmp_path / "run")))
    assert (run.num_workers, run.local_batch) == (2, 32)
    # Neither waiting for data nor for others is work.
    assert run.compute_seconds == pytest.approx(0.04)
    assert (run.parameters, run.messages) == (150_000, 2)
    assert run.exchanged_bytes == 600_000
    assert run.checkpoint_bytes > 4 * 250_000
    assert read_run(str(write_run(tmp_path / "half", compression="bf16"))).exchanged_bytes == 300_000


def test_each_worker_keeps_its_batch_or_shares_one(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    kept = plan_for(run, "workers=[1,8,64]")
    assert [each.step.local_batch for each in kept.workers] == [32, 32, 32]
    assert kept.workers[0].efficiency == pytest.approx(1.0)
    assert kept.workers[2].step.images_per_second > 40 * kept.workers[0].step.images_per_second
    shared = plan_for(run, "workers=[1,8,64]", "global_batch=64")
    assert [each.step.local_batch for each in shared.workers] == [64, 8, 1]
    with pytest.raises(ConfigInvalid, match="global_batch=4 is less than one image"):
        plan_for(run, "workers=[8]", "global_batch=4")


def test_a_second_run_tells_what_does_not_shrink(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    half = write_run(tmp_path / "half", global_batch=32, time_step_ms=30.0)
    plan = plan_for(run, f"second_run={half}", "workers=[8]", "global_batch=64")
    # 40 and 24 ms of work for 32 and 16 images: 8 of them, and 1 for each image.
    assert plan.model.fixed_seconds == pytest.approx(0.008)
    assert plan.workers[0].step.compute_seconds == pytest.approx(0.016)
    other = write_run(tmp_path / "other", values=2, global_batch=32)
    with pytest.raises(ConfigInvalid, match="another model"):
        plan_for(run, f"second_run={other}")


def test_time_and_price_contain_failures(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    calm, stormy = (
        plan_for(run, "workers=[64]", "price_per_worker_hour=2", f"failures.worker_hours={hours}").workers[0]
        for hours in (1e9, 64)
    )
    assert calm.hours == pytest.approx(1_000_000 / calm.step.images_per_second / 3600, rel=0.001)
    assert calm.price == pytest.approx(2 * 64 * calm.hours)
    assert stormy.hours > 1.05 * calm.hours
    assert stormy.interval_seconds < calm.interval_seconds


def test_what_shards_cost_is_measured_where_they_are(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path / "shards", size=SIZE)
    plan = plan_for(write_run(tmp_path / "run", shards=tmp_path / "shards"), "workers=[1,64]")
    one, many = plan.workers
    assert plan.data is not None
    assert one.read_bytes is not None
    assert many.read_bytes is not None
    assert one.read_bytes == pytest.approx(plan.data.image_bytes * one.step.images_per_second)
    assert many.read_bytes > 40 * one.read_bytes
    assert many.decode_cores is not None
    assert many.decode_cores > 0
    away = plan_for(write_run(tmp_path / "away"), "workers=[1]").workers[0]
    assert (away.read_bytes, away.decode_cores) == (None, None)
    named = plan_for(write_run(tmp_path / "named"), "workers=[1]", f"shards={tmp_path / 'shards'}").workers[0]
    assert named.read_bytes == pytest.approx(one.read_bytes)
    with pytest.raises(InputMissing, match="no such folder of shards"):
        plan_for(write_run(tmp_path / "wrong"), "shards=nowhere")


def test_the_service_gets_machines_for_its_requests(tmp_path: Path) -> None:
    write_figures(tmp_path, "bench-serve", {"throughput": MeasuredFigure(value=10.0, unit="pictures/s")})
    figures = f"service.figures={tmp_path / 'figures.json'}"
    run = write_run(tmp_path / "run")
    plan = plan_for(run, "workers=[1]", figures, "service.requests_per_second=71")
    assert plan.machines == 11
    with pytest.raises(InputMissing, match=r"service\.figures.*No such file"):
        plan_for(run, "service.figures=nowhere.json")


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing):
        plan_for(tmp_path / "nothing")
    with pytest.raises(InputMissing, match="holds no times of steps"):
        plan_for(write_run(tmp_path / "silent", time_step_ms=0.0))
    first = write_run(tmp_path / "first", save_stall_seconds=float("nan"))
    with pytest.raises(InputMissing, match=r"failures\.stall_seconds"):
        plan_for(first)
    assert plan_for(first, "failures.stall_seconds=1").failures.stall_seconds == 1


def test_a_preset_is_planned_from_a_rate_that_was_measured_elsewhere() -> None:
    plan = make_plan(
        load_config(
            PlanConfig,
            overrides=[
                "run=preset:tiny-64",
                "output=x",
                "simulation.failures=20",
                "images_per_second=500",
                "workers=[1,8]",
            ],
        )
    )
    assert plan.workers[0].step.images_per_second == pytest.approx(500)
    assert plan.run.parameters > 1e6
    # Weights, momenta and averages of what is trained, and the encoder that supervises.
    assert plan.run.checkpoint_bytes > 3 * 4 * plan.run.parameters * 0.8
    with pytest.raises(ConfigInvalid, match="set images_per_second"):
        make_plan(load_config(PlanConfig, overrides=["run=preset:tiny-64", "output=x"]))


def test_settings_replace_what_was_measured(tmp_path: Path) -> None:
    plan = plan_for(write_run(tmp_path / "run"), "images_per_second=3200", "step_spread=0")
    assert plan.run.compute_seconds == pytest.approx(0.01)
    assert [each.step.waiting_seconds for each in plan.workers] == [0, 0, 0, 0]


def test_the_command_writes_a_report_and_prints_every_assumption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    output = tmp_path / "plan"
    command = ["plan", str(run), "--output", str(output), "workers=[1,8]", "simulation.failures=20"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    for said in ("228 GB/s inside", "200 Gbit/s between nodes", "50,000 hours", "0.1 M values", "1,000,000 images"):
        assert said in printed
    figures = json.loads((output / "figures.json").read_text())["figures"]
    assert figures["efficiency_1"]["value"] == pytest.approx(1.0)
    assert figures["images_per_second_8"]["value"] > 7 * figures["images_per_second_1"]["value"]
    page = (output / "report.html").read_text()
    assert "Goodput of 64 workers" in page
    assert "StyleGAN3 t-128-a100" in page
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "plan"

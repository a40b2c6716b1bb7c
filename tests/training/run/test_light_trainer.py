"""The one module that builds on internals of Ray Train: read in this version, and what it saves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import ray
import ray.train
import torch

from fusionray.hardware.processes import add_descendants, list_processes
from fusionray.training.run.light_trainer import LightTrainer, ProcessGroupConfig


def test_the_internals_were_read_in_this_version_of_ray() -> None:
    # After an upgrade: compare light_trainer.py with the two files of Ray that it names, then raise this.
    assert ray.__version__.startswith("2.60.")


@pytest.mark.usefixtures("ray_session")
def test_workers_share_a_group_and_the_controller_starts_nothing_idle(tmp_path: Path) -> None:
    class Controller(ray.train.UserCallback):
        def after_report(self, run_context: object, metrics: list[dict[str, object]], checkpoint: object) -> None:
            import sys

            (tmp_path / "controller.json").write_text(json.dumps("torch" in sys.modules))

    driver = os.getpid()
    # Other tests of this Ray have left theirs.
    earlier = set(list_titles(driver))

    def add_ranks() -> None:
        import os

        import torch.distributed as dist

        total = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(total)
        (tmp_path / f"{dist.get_rank()}.json").write_text(json.dumps([int(total), os.environ["LOCAL_RANK"]]))
        (tmp_path / "titles.json").write_text(json.dumps(list_titles(driver)))
        ray.train.report({})

    trainer = LightTrainer(
        add_ranks,
        backend_config=ProcessGroupConfig("gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(name="light", storage_path=str(tmp_path), callbacks=[Controller()]),
    )
    trainer.fit()
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [[3, "0"], [3, "1"]]
    assert json.loads((tmp_path / "controller.json").read_text()) is False
    seen = json.loads((tmp_path / "titles.json").read_text())
    titles = " ".join(title for pid, title in seen.items() if pid not in earlier)
    assert "ray::TrainController" in titles
    assert not any(idle in titles for idle in ("DatasetManager", "PlacementGroupCleaner", "AutoscalingCoordinator"))


def list_titles(ancestor: int) -> dict[str, str]:
    """List the command lines of the descendants of a process, by id; Ray writes the class of an actor into its own."""
    files = {str(pid): Path(f"/proc/{pid}/cmdline") for pid in add_descendants({ancestor}, list_processes())}
    return {pid: file.read_bytes().decode(errors="replace") for pid, file in files.items() if file.exists()}

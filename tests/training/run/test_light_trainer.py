"""The one module that builds on internals of Ray Train: read in this version, and what it saves."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import ray
import ray.train
import torch
from ray.util.placement_group import placement_group_table

from fusionray.hardware.processes import add_descendants, list_processes
from fusionray.training.faults.leftover_workers import end_leftover_workers
from fusionray.training.run.light_trainer import LightTrainer, ProcessGroupConfig, choose_interface
from tests.support.waiting import wait_for


def test_the_internals_were_read_in_this_version_of_ray() -> None:
    # After an upgrade: compare light_trainer.py with the two files of Ray that it names, then raise this.
    assert ray.__version__.startswith("2.60.")


def test_gloo_takes_the_interface_of_the_node_unless_the_user_chose_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that it is taken away at the end.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    del os.environ["GLOO_SOCKET_IFNAME"]
    choose_interface("192.0.2.1")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    choose_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    choose_interface("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.slow(seconds=17)
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


@pytest.mark.usefixtures("ray_session")
def test_workers_of_a_dead_controller_end_before_the_next_start(tmp_path: Path) -> None:
    class Death(ray.train.UserCallback):
        def after_report(self, run_context: object, metrics: list[dict[str, object]], checkpoint: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    def report_and_wait() -> None:
        (tmp_path / "worker").write_text(str(os.getpid()))
        ray.train.report({})
        time.sleep(600)

    trainer = LightTrainer(
        report_and_wait,
        backend_config=ProcessGroupConfig("gloo"),
        scaling_config=ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.25}),
        run_config=ray.train.RunConfig(name="orphan", storage_path=str(tmp_path), callbacks=[Death()]),
    )
    reserved_before = find_reserved()
    with pytest.raises(ray.exceptions.ActorDiedError):
        trainer.fit()
    # Ray keeps what a dead controller has reserved, and so do its workers, if they have not noticed its death.
    (left,) = find_reserved() - reserved_before
    end_leftover_workers(str(tmp_path / "orphan"))
    wait_for(lambda: left not in find_reserved(), seconds=10)
    worker = int((tmp_path / "worker").read_text())
    wait_for(lambda: worker not in list_processes(), seconds=10)
    end_leftover_workers(str(tmp_path / "orphan"))


def find_reserved() -> set[str]:
    """Find the placement groups that hold resources."""
    table = placement_group_table()
    return {group for group, row in table.items() if row["state"] == "CREATED"}


def list_titles(ancestor: int) -> dict[str, str]:
    """List the command lines of the descendants of a process, by id; Ray writes the class of an actor into its own."""
    files = {str(pid): Path(f"/proc/{pid}/cmdline") for pid in add_descendants({ancestor}, list_processes())}
    return {pid: file.read_bytes().decode(errors="replace") for pid, file in files.items() if file.exists()}

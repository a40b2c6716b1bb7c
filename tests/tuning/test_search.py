"""Searches on a real Ray cluster, checked by the records and the tracker."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fusionray.bundle.bundle import read_bundle
from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.config import load_config
from fusionray.hardware.processes import find_processes
from fusionray.tracking.store import make_client
from fusionray.training.config import TrainConfig
from fusionray.tuning.config import TuneConfig
from fusionray.tuning.driver import tune
from fusionray.tuning.records import SearchRecords, repeated_images
from fusionray.tuning.result import SearchResult
from tests.tuning.tiny_search import EVERY, GENERATOR_RATE, RATE, build_fusion_search, build_search

# What Tune makes of a trainable that is given parameters.
TRIAL_PROCESS = "ray::_Inner"
# Images between two evaluations where it matters what happens between them: a second or two.
EVALUATED = 512

pytestmark = pytest.mark.usefixtures("ray_session")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> SearchResult:
    """A search of two trials at once, whose best is registered."""
    return tune(build_finished(tmp_path_factory.mktemp("finished")))


def build_finished(folder: Path) -> TuneConfig:
    budget = {"images": EVERY, "checkpoint_every_images": EVERY, "validate_every_images": EVERY}
    return build_fusion_search(
        folder,
        rate=1e-2,
        search="tpe",
        startup_trials=2,
        train={"budget": budget},
        max_concurrent_trials=2,
        metric="validation_l1_to_truth",
        mode="min",
        register_as="tiny-fusion",
    )


@pytest.mark.slow(seconds=60)
def test_trials_are_nested_in_the_run_of_the_search(finished: SearchResult) -> None:
    client = make_client(f"sqlite:///{Path(finished.folder).parent}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'fusionray'")
    runs = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in runs if run.info.run_name == "tiny"]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.info.run_name for run in children) == ["tiny-000", "tiny-001"]
    assert "validation_l1_to_truth" in children[0].data.metrics


@pytest.mark.slow(seconds=1)
def test_the_preset_of_the_best_trial_is_valid_and_its_bundle_registered(finished: SearchResult) -> None:
    config = load_config(TrainConfig, file=finished.preset)
    assert config.recipe.generator_optimizer.base_lr == finished.best.settings[GENERATOR_RATE]  # type: ignore[union-attr]
    assert finished.registered == "models:/tiny-fusion@candidate"
    bundle = read_bundle(finished.registered, f"sqlite:///{Path(finished.folder).parent}/mlflow.db")
    assert bundle.description.lineage.config["run"]["name"] == finished.best.name


@pytest.mark.slow(seconds=4)
def test_the_same_call_again_trains_nothing(finished: SearchResult) -> None:
    records = SearchRecords(finished.folder)
    before = [records.attempts(record.name) for record in records.trials()]
    again = tune(build_finished(Path(finished.folder).parents[1]))
    assert again.best == finished.best
    assert [records.attempts(record.name) for record in records.trials()] == before
    assert not (Path(finished.folder) / "tune").exists()


@pytest.mark.slow(seconds=65)
def test_asha_stops_a_bad_trial_which_leaves_a_checkpoint(tmp_path: Path) -> None:
    budget = {"images": 4 * EVALUATED, "checkpoint_every_images": EVALUATED, "validate_every_images": EVALUATED}
    config = build_fusion_search(
        tmp_path,
        rate=1e-2,
        # What this seed draws second lies five magnitudes below the default: that trial learns next to nothing.
        seed=3,
        search="tpe",
        startup_trials=2,
        train={"budget": budget},
        asha={"grace_images": EVALUATED, "factor": 2},
        trials=3,
        max_concurrent_trials=2,
        metric="validation_l1_to_truth",
        mode="min",
    )
    result = tune(config)
    records = SearchRecords(result.folder)
    trials = records.trials()
    assert [record.status for record in trials[:2]] == ["finished", "stopped"]
    assert len(trials[0].reports) == 4
    assert len(trials[1].reports) < 4
    assert result.best.number != 1
    assert result.figures.figures["images_trained"].value < 3 * 4 * EVALUATED
    (attempt,) = records.attempts("tiny-001")
    assert attempt.ended == "interrupted"
    assert read_info(find_checkpoint(attempt.run)).images_seen == attempt.last_images < 4 * EVALUATED


@pytest.mark.slow(seconds=75)
def test_a_population_copies_checkpoints_of_the_better_half(tmp_path: Path) -> None:
    # Far enough apart that a member which pauses does not pass the next comparison on its way.
    interval = 8 * EVERY
    budget = {"images": 2 * interval, "checkpoint_every_images": interval, "validate_every_images": interval}
    population = {"quantile": 0.5, "resample": 0.0}
    config = build_search(
        tmp_path, search="pbt", trials=2, max_concurrent_trials=2, population=population, train={"budget": budget}
    )
    result = tune(config)
    records = SearchRecords(result.folder)
    trials = records.trials()
    assert [record.status for record in trials] == ["finished", "finished"]
    transfers = {record.name: records.transfers(record.name) for record in trials}
    assert sum(map(len, transfers.values())) >= 1
    for name, found in transfers.items():
        for number, transfer in enumerate(found, 1):
            assert transfer.source_trial != name
            assert transfer.run.endswith(f"{name}-g{number}")
            source = next(record for record in trials if record.name == transfer.source_trial)
            assert transfer.settings[RATE] != source.settings[RATE]
            # The attempt records that the trial started from the source's checkpoint.
            attempt = next(one for one in records.attempts(name) if one.run == transfer.run)
            assert attempt.first_images == transfer.images >= interval
    for record in trials:
        last = transfers[record.name][-1:]
        assert not last or record.settings == last[0].settings
        assert record.last is not None
        assert record.last.images == 2 * interval


@pytest.fixture
def killer() -> Iterator[Any]:
    """Kill processes of this session's Ray cluster by name, once a condition holds."""
    threads: list[threading.Thread] = []
    over = threading.Event()

    def start(title: str, condition: Any) -> list[int]:
        killed: list[int] = []

        def wait() -> None:
            while not over.wait(0.1):
                if condition() and (found := find_processes(title, variable=f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}")):
                    os.kill(found[0], signal.SIGKILL)
                    killed.append(found[0])
                    return

        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        return killed

    yield start
    over.set()
    for thread in threads:
        thread.join()


@pytest.mark.slow(seconds=75)
def test_a_trial_whose_process_or_worker_dies_resumes_from_its_checkpoint(tmp_path: Path, killer: Any) -> None:
    interval = 4 * EVERY
    budget = {"images": 8 * interval, "checkpoint_every_images": interval, "validate_every_images": 4 * interval}
    config = build_search(tmp_path, train={"budget": budget})
    trials = tmp_path / "runs" / "tiny" / "trials"

    def has_checkpoint(name: str) -> bool:
        return any((trials / name).glob("checkpoint-*/info.json"))

    trial_killed = killer(TRIAL_PROCESS, lambda: has_checkpoint("tiny-000"))
    worker_killed = killer("RayTrainWorker", lambda: has_checkpoint("tiny-001"))
    started = time.monotonic()
    result = tune(config)
    assert trial_killed
    assert worker_killed
    records = SearchRecords(result.folder)
    assert [record.status for record in records.trials()] == ["finished", "finished"]
    first, second = records.attempts("tiny-000")
    assert second.first_images >= interval
    assert second.ended == "finished"
    # A worker that dies is started again inside its trial, by Ray Train.
    (only,) = records.attempts("tiny-001")
    assert only.last_images >= 8 * interval
    assert max(repeated_images([first, second])) <= interval
    assert time.monotonic() - started < 200

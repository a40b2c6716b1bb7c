"""A search as a real process that is killed, stopped by a signal, and continued by the same command."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.hardware.processes import find_processes
from fusionray.tuning.records import Attempt, SearchRecords, TrialRecord, repeated_images
from tests.support.child_python import ROOT
from tests.tuning.tiny_search import write_search

VERB = ("-m", "fusionray.cli", "tune", "--config")
DRIVER = ROOT / "jobs" / "tune_driver.py"
START_SECONDS = 150
# Three starts, each with its own limit, which tells more than a timeout of the test.
pytestmark = [pytest.mark.starts_ray, pytest.mark.timeout(4 * START_SECONDS)]
# Each of the four tests of the story takes its share of the time.
slow = pytest.mark.slow(seconds=38)
INTERVAL = 256
IMAGES = 20 * INTERVAL
BATCH_IMAGES = 16


@dataclass(frozen=True)
class Search:
    """A search in a folder; `ray_folder` identifies the processes of its Ray clusters."""

    file: Path
    ray_folder: str

    @property
    def records(self) -> SearchRecords:
        return SearchRecords(str(self.file.parent / "runs" / "tiny"))

    def start(self, *command: str) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment = {**inherited, "PYTHONPATH": str(ROOT / "platform"), "RAY_TMPDIR": self.ray_folder}
        arguments = [sys.executable, *command, str(self.file)]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)

    def wait(self, driver: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert driver.poll() is None, driver.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def newest(self, trial: str) -> int:
        """Count the images of a trial's newest checkpoint; 0 before the first."""
        folders = (Path(self.records.folder).parent / "trials" / trial).glob("checkpoint-*/info.json")
        return max((int(folder.parent.name.removeprefix("checkpoint-")) for folder in folders), default=0)

    def got_on(self) -> bool:
        """Tell whether the second start of the second trial has written a checkpoint."""
        attempts = self.records.attempts("tiny-001")
        return len(attempts) == 2 and self.newest("tiny-001") > attempts[1].first_images

    def processes(self) -> list[int]:
        """Find the running processes of this search's Ray clusters."""
        return find_processes(variable=f"RAY_TMPDIR={self.ray_folder}")


@dataclass(frozen=True)
class Story:
    """The records after three starts of the search: killed, stopped by a signal, finished."""

    finished_before: list[TrialRecord]
    attempts_before: list[Attempt]
    checkpoint_before: int
    stopped_status: int
    stopped_errors: str
    checkpoint_stopped: int
    last_output: str
    search: Search


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    budget = {"images": IMAGES, "checkpoint_every_images": INTERVAL, "validate_every_images": IMAGES // 2}
    file = write_search(tmp_path_factory.mktemp("killed"), train={"budget": budget})
    # The path of a socket in it may have 107 characters: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(prefix="fr-tune-", ignore_cleanup_errors=True) as ray_folder:
        search = Search(file, ray_folder)
        drivers = []
        try:
            drivers.append(search.start(*VERB))
            search.wait(drivers[-1], lambda: search.newest("tiny-001") > 0)
            drivers[-1].send_signal(signal.SIGKILL)
            drivers[-1].communicate()
            finished = [record for record in search.records.trials() if record.status == "finished"]
            attempts = search.records.attempts("tiny-000")
            before = search.newest("tiny-001")

            drivers.append(search.start(*VERB))
            search.wait(drivers[-1], search.got_on)
            drivers[-1].send_signal(signal.SIGTERM)
            _, errors = drivers[-1].communicate(timeout=START_SECONDS)
            stopped = search.newest("tiny-001")

            # The script that users copy does the same as the command, so it continues its search.
            drivers.append(search.start(str(DRIVER)))
            output, complaints = drivers[-1].communicate(timeout=START_SECONDS)
            assert drivers[-1].returncode == 0, complaints
            status = drivers[1].returncode
            yield Story(finished, attempts, before, status, errors, stopped, output, search)
        finally:
            for driver in drivers:
                driver.kill()
                driver.communicate()
            # The Ray of a killed driver ends by itself, within a minute.
            for process in search.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


@slow
def test_finished_trials_are_kept(story: Story) -> None:
    (before,) = story.finished_before
    after = story.search.records.trials()
    assert before == after[0]
    assert story.search.records.attempts("tiny-000") == story.attempts_before
    assert [record.status for record in after] == ["finished", "finished"]


@slow
def test_nothing_is_trained_twice_beyond_one_checkpoint_interval(story: Story) -> None:
    killed, stopped, last = story.search.records.attempts("tiny-001")
    assert killed.first_images == 0
    assert killed.ended == ""
    # Workers of a killed driver train on until Ray notices; their checkpoints count, too.
    assert stopped.first_images >= story.checkpoint_before > 0
    assert last.first_images == story.checkpoint_stopped
    repeated = repeated_images([killed, stopped, last])
    assert repeated[0] <= INTERVAL + BATCH_IMAGES
    assert repeated[1] == 0


@slow
def test_a_stopped_search_stops_its_trials_with_a_checkpoint(story: Story) -> None:
    _, stopped, _ = story.search.records.attempts("tiny-001")
    assert story.stopped_status == 128 + signal.SIGTERM
    assert stopped.ended == "interrupted"
    assert stopped.last_images == story.checkpoint_stopped
    assert "Traceback" not in story.stopped_errors
    last = story.stopped_errors.strip().splitlines()[-1]
    assert last.startswith("fusionray tune: search 'tiny' stopped on SIGTERM")


@slow
def test_the_search_finishes(story: Story) -> None:
    trial = story.search.records.trials()[1]
    assert read_info(find_checkpoint(story.search.records.attempts("tiny-001")[-1].run)).images_seen == IMAGES
    assert trial.last is not None
    assert trial.last.images == IMAGES
    assert "best.yaml" in story.last_output
    assert story.last_output.strip().endswith("report.html")


def test_the_driver_to_copy_is_short() -> None:
    assert len(DRIVER.read_text().splitlines()) < 40

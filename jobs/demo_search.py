"""A search that is killed in front of the reader, and started again by the same command until it is done.

python jobs/demo_search.py [key=value ...]

First the driver is killed (SIGKILL), then the whole Ray: the driver and every process that descends from it. At the end
the search's records are asked what was kept and what was trained twice.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "platform")]

from fusionray.checkpoint.info import newest_checkpoint, read_info  # noqa: E402
from fusionray.config import load_config  # noqa: E402
from fusionray.environment import resolve_location  # noqa: E402
from fusionray.hardware.processes import add_descendants, list_processes  # noqa: E402
from fusionray.tuning.config import TuneConfig  # noqa: E402
from fusionray.tuning.driver import resolve_train  # noqa: E402
from fusionray.tuning.plan import TRIALS_FOLDER, search_folder  # noqa: E402
from fusionray.tuning.records import SearchRecords, repeated_images  # noqa: E402

PRESET = ROOT / "jobs" / "presets" / "search-small.yaml"
WAIT_SECONDS = 600.0
# In the folder of a search that this demonstration may delete.
MARKER = "demonstration"


def main() -> int:
    """Run the search with two murders on the way; exit 1 if something was lost or trained twice."""
    overrides = sys.argv[1:]
    config = load_config(TuneConfig, file=PRESET, overrides=overrides)
    folder = Path(search_folder(config.model_copy(update={"output": resolve_location(config.output)})))
    if folder.exists() and not (folder / MARKER).exists():
        print(f"{folder}: is a search of yours, not one of this demonstration; name another output", file=sys.stderr)
        return 2
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    interval = resolve_train(config).budget.checkpoint_every_images
    search = Search(folder, interval, ["tune", "--config", str(PRESET), *overrides])

    tell("start the search, and wait until a trial is finished and the next one has got past a checkpoint")
    driver = search.start()
    search.wait_for(driver, finished=1)
    kept = search.finished()
    tell(f"finished so far: {', '.join(kept)}. Now SIGKILL to the driver, {driver.pid}")
    driver.kill()
    driver.wait()

    tell("the same command again, until another trial is finished and the next one has got past a checkpoint")
    driver = search.start()
    search.wait_for(driver, finished=2)
    kept |= search.finished()
    doomed = add_descendants([driver.pid], list_processes())
    tell(f"finished so far: {', '.join(kept)}. Now SIGKILL to the whole Ray, {len(doomed)} processes")
    for process in sorted(doomed):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    driver.wait()

    tell("the same command again, until it is done")
    status = search.start().wait()
    if status:
        return status
    return search.account(kept)


class Search:
    """The search as a process, and what its records say."""

    def __init__(self, folder: Path, interval: int, arguments: list[str]) -> None:
        self.folder = folder
        self.interval = interval
        self.arguments = arguments
        self.records = SearchRecords(str(folder))

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command line."""
        paths = [str(ROOT / "platform"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-m", "fusionray.cli", *self.arguments]
        return subprocess.Popen(command, env=environment)  # noqa: S603 - our own command

    def finished(self) -> dict[str, int]:
        """Count the attempts of each finished trial."""
        return {
            record.name: len(self.records.attempts(record.name))
            for record in self.records.trials()
            if record.status == "finished"
        }

    def wait_for(self, driver: subprocess.Popen[bytes], *, finished: int) -> None:
        """Wait until so many trials are finished, and a running one has something to lose."""
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.finished()) < finished or not self.has_got_on():
            if driver.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"demo_search: the search ended or stood still, status {driver.poll()}")
            time.sleep(0.2)

    def has_got_on(self) -> bool:
        """Tell whether a running trial has a checkpoint, and has gone on for a while since: that will be lost."""
        for record in self.records.trials():
            attempts = self.records.attempts(record.name)
            if record.status == "running" and attempts:
                newest = newest_checkpoint(str(self.folder / TRIALS_FOLDER / record.name))
                saved = 0 if newest is None else read_info(newest).images_seen
                if saved > attempts[-1].first_images and attempts[-1].last_images >= saved + self.interval // 4:
                    return True
        return False

    def account(self, kept: dict[str, int]) -> int:
        """Say what the records hold, trial by trial; return 1 if something was lost or trained twice."""
        lost = [name for name, attempts in kept.items() if len(self.records.attempts(name)) != attempts]
        worst = 0
        print("\ntrial              status    its starts, from image to image")
        for record in self.records.trials():
            attempts = self.records.attempts(record.name)
            worst = max([worst, *repeated_images(attempts)])
            ways = ", ".join(f"{one.first_images}-{one.last_images}{' killed' * (not one.ended)}" for one in attempts)
            print(f"{record.name:<18} {record.status:<9} {ways}")
        print(f"\nfinished trials that were touched again: {len(lost)} of {len(kept)}")
        print(f"images trained twice, at most in one restart: {worst} (checkpoints lie {self.interval} apart)")
        return int(bool(lost) or worst > self.interval)


def tell(line: str) -> None:
    print(f"demo_search: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())

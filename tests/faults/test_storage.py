"""Storage that is full, read-only or hangs: one clear line, saved files are intact, and the same command resumes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusionray.checkpoint.info import find_checkpoint, read_info
from fusionray.checkpoint.reader import load_tensors
from fusionray.cli import main
from fusionray.data.shards import read_manifest
from tests.faults.driver import meanwhile, wait_until
from tests.support.tiny_run import CHECKPOINT_IMAGES, IMAGES, NAME, count_images, write_run

# One worker meets the faults of a disk as two do, and is there sooner.
WORKERS = {"max_failures": 0, "num_workers": 1}


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() or not mount("-t", "tmpfs", "-o", "size=16m", "none", str(folder)):
        pytest.skip("a disk of its own takes root, and a system that lets it mount")
    try:
        yield folder
    finally:
        # Lazily, because a log of Ray may still be open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    """Fill the disk to the last byte."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


def refusal(capfd: pytest.CaptureFixture[str]) -> str:
    """Return the single line with which a command ended."""
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fusionray train: ")]
    return line


@pytest.mark.slow(seconds=75)
def test_a_full_and_a_read_only_disk_are_reported_and_saved_files_are_kept(
    tmp_path: Path, disk: Path, ray_session: None, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = disk / "runs"
    changes = {"workers": WORKERS, "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db"}}
    settings = str(write_run(tmp_path, runs, **changes))

    def fill_in_mid_run() -> None:
        wait_until("a checkpoint", lambda: count_images(runs) > 0)
        fill(disk)

    with meanwhile(fill_in_mid_run):
        assert main(["train", "--config", settings]) == 1
    line = refusal(capfd)
    assert "could not be saved" in line, line
    assert "free some space or fix the permissions, then start the same run again" in line
    reached = count_images(runs)
    assert CHECKPOINT_IMAGES <= reached < IMAGES
    assert load_tensors(find_checkpoint(str(runs / NAME)))

    (disk / "filler").unlink()
    assert mount("-o", "remount,ro", str(disk))
    assert main(["train", "--config", settings]) == 1
    assert "Read-only file system" in refusal(capfd)

    assert mount("-o", "remount,rw", str(disk))
    assert count_images(runs) == reached
    assert main(["train", "--config", settings]) == 0
    assert read_info(find_checkpoint(str(runs / NAME))).images_seen == IMAGES


@pytest.mark.slow(seconds=25)
def test_storage_that_hangs_during_a_run_is_reported_after_the_timeout(
    tmp_path: Path, ray_session: None, capfd: pytest.CaptureFixture[str]
) -> None:
    changes = {"workers": WORKERS, "data": {"timeout_seconds": 5.0}, "budget": {"images": 100_000}}
    settings = write_run(tmp_path, tmp_path / "runs", **changes)
    shards = tmp_path / "shards"

    def hang() -> None:
        wait_until("a checkpoint", lambda: count_images(settings.parent) > 0)
        for name in read_manifest(str(shards)).files("train"):
            (shards / name).unlink()
            os.mkfifo(shards / name)  # whoever opens it waits for a writer

    with meanwhile(hang):
        assert main(["train", "--config", str(settings)]) == 1
    assert "no rows came for 5 s; check the storage, or raise data.timeout_seconds" in refusal(capfd)
    assert count_images(settings.parent) >= CHECKPOINT_IMAGES

"""A run that is killed goes on from what is finished, and its video is that of a run that nobody disturbed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

import pytest

from fusionray.cli import main
from fusionray.errors import VideoRejected
from fusionray.faces.image_files.decode import decode_image
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.work import LocalWorkers
from tests.support.child_python import ROOT
from tests.video.films import HEIGHT, WIDTH, film

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")

FRAMES = 40


@pytest.fixture
def target(tmp_path: Path) -> str:
    return film(tmp_path / "talk.mp4", num_frames=FRAMES, key_frames=8)


def command(source: str, target: str, output: Path, bundle: str) -> list[str]:
    return [
        "fuse-video",
        source,
        target,
        str(output),
        "--bundle",
        bundle,
        "--segment-seconds",
        "0.3",
        "--steady-colours",
    ]


def kill_once(arguments: list[str], file: Path) -> None:
    """Run a command, and kill it as soon as a file is there.

    It is so nice that it does not end while this process waits for a CPU.
    """
    path = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path}
    nice = ["nice", "-n", "19", sys.executable, "-m", "fusionray.cli", *arguments]
    with subprocess.Popen(nice, env=environment) as process:
        while not file.exists():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)


def film_hash(output: Path) -> str:
    """Return the hash of the film before it was signed: a signature is another each time."""
    text = (output.parent / f"{output.stem}-report" / "report.md").read_text()
    found = re.search(r"[0-9a-f]{64}", text)
    assert found
    return found[0]


def figure(output: Path, key: str) -> float:
    figures = json.loads((output.parent / f"{output.stem}-report" / "figures.json").read_text())["figures"]
    return float(figures[key]["value"])


def test_a_run_that_is_killed_three_times_makes_the_same_video(
    tmp_path: Path, target: str, source: str, bundle: str
) -> None:
    whole, killed = tmp_path / "whole.mp4", tmp_path / "killed.mp4"
    assert main(command(source, target, whole, bundle)) == 0
    assert (figure(whole, "segments"), figure(whole, "frames_resumed")) == (5, 0)
    work = tmp_path / ".killed.mp4.work"
    shown = tmp_path / "killed-report" / "preview.png"
    for file in (work / "scan-00001.npz", work / "segment-00000.mp4", shown):
        kill_once(command(source, target, killed, bundle), file)
        assert not killed.exists()
    assert decode_image(shown.read_bytes()).shape == (HEIGHT, WIDTH, 3)
    assert len(list(work.glob("scan-*"))) == 5
    assert main(command(source, target, killed, bundle)) == 0
    assert figure(killed, "frames_resumed") >= 8
    assert film_hash(killed) == film_hash(whole)
    assert not work.exists()
    assert not shown.exists()


def test_what_other_settings_made_is_not_used(tmp_path: Path, target: str, source: str, bundle: str) -> None:
    output = tmp_path / "fused.mp4"
    arguments = command(source, target, output, bundle)
    work = tmp_path / ".fused.mp4.work"
    kill_once(arguments, work / "segment-00001.mp4")
    faces = {path.name: path.stat().st_mtime_ns for path in work.glob("scan-*")}
    kill_once([*arguments, "--quality", "30"], work / "segment-00000.mp4")
    # The faces do not depend on the encoder.
    assert faces == {path.name: path.stat().st_mtime_ns for path in work.glob("scan-*")}
    assert main([*arguments, "--quality", "30", "--faces", "all"]) == 0
    assert figure(output, "frames_resumed") == 0


def test_two_processes_do_not_make_one_video(
    tmp_path: Path, target: str, source: str, bundle: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from fusionray.video.workspace import claim

    output = tmp_path / "fused.mp4"
    with claim(output):
        assert main(command(source, target, output, bundle)) == 1
    assert "fused.mp4: another process makes it" in capsys.readouterr().err


def test_a_damaged_manifest_is_begun_anew(tmp_path: Path, target: str, source: str, bundle: str) -> None:
    output = tmp_path / "fused.mp4"
    work = tmp_path / ".fused.mp4.work"
    work.mkdir()
    (work / "manifest.json").write_text("{")
    (work / "scan-00000.npz").write_text("nothing")
    assert main(command(source, target, output, bundle)) == 0
    assert output.exists()


class EndlessWorker:
    """Fails on the first segment, and never finishes another one by itself."""

    scans_at_once = 2

    def scan(self, segment: Segment, advance: Advance) -> NoReturn:
        if segment.number == 0:
            started.wait(60)
            raise VideoRejected("damaged", "the first segment is damaged")
        while True:
            started.set()
            advance(1)


started = threading.Event()


def test_work_on_other_segments_ends_when_one_fails() -> None:
    segments = [Segment(number, None, None, 1) for number in range(3)]
    workers = LocalWorkers(EndlessWorker())  # type: ignore[arg-type]
    with pytest.raises(VideoRejected, match="the first segment is damaged"):
        list(workers.scan(segments, lambda _: None))


def test_an_interrupted_run_says_that_it_goes_on(tmp_path: Path, target: str, source: str, bundle: str) -> None:
    output = tmp_path / "fused.mp4"
    work = tmp_path / ".fused.mp4.work"
    path = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    run = [sys.executable, "-m", "fusionray.cli", *command(source, target, output, bundle), "--preset", "placebo"]
    with subprocess.Popen(run, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True) as process:
        while not list(work.glob("scan-*")):
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command continues" in said
    assert not output.exists()
    assert list(work.glob("*.part*")) == []

"""Segments on three nodes, one of which is lost: the video is that of a single process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fusionray.cli import main
from tests.faults.three_nodes import LocalNodes
from tests.support.child_python import ROOT, TIMEOUT_SECONDS
from tests.video.films import film
from tests.video.test_resume import command, figure, film_hash

pytestmark = [
    pytest.mark.starts_ray,
    pytest.mark.slow(seconds=90),
    pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning"),
]


def test_a_video_is_split_over_nodes_and_a_lost_one_costs_its_segments_only(
    tmp_path: Path, source: str, bundle: str
) -> None:
    target = film(tmp_path / "talk.mp4", num_frames=96, key_frames=8)
    whole, split = tmp_path / "whole.mp4", tmp_path / "split.mp4"
    assert main(command(source, target, whole, bundle)) == 0
    arguments = [*command(source, target, split, bundle), "--workers", "3", "--cpus-per-worker", "2"]
    path = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))
    with LocalNodes() as nodes:
        environment = {**os.environ, **nodes.environment, "PYTHONPATH": path}
        with subprocess.Popen([sys.executable, "-m", "fusionray.cli", *arguments], env=environment) as process:
            first = tmp_path / ".split.mp4.work" / "segment-00000.mp4"
            limit = time.monotonic() + TIMEOUT_SECONDS
            while not first.exists() and process.poll() is None and time.monotonic() < limit:
                time.sleep(0.01)
            assert process.poll() is None, "it ended before a node could be lost"
            nodes.kill(2)
            assert process.wait(TIMEOUT_SECONDS) == 0
    assert figure(split, "segments") == 12
    assert film_hash(split) == film_hash(whole)

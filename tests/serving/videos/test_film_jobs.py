"""Jobs whose target is a film, over HTTP: the real service, and a task of its cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fusionray.cli import main
from fusionray.faces.decode import decode_image
from fusionray.safety.verify import verify
from tests.serving.videos.film_jobs import (
    SOURCE,
    film_folder,
    look,
    reason_of,
    remove_jobs,
    start,
    start_one,
    wait_for_end,
)
from tests.support.serving import SEGMENT_SECONDS, OpenService
from tests.support.videos import read_packets
from tests.video.films import film
from tests.video.test_resume import film_hash

pytestmark = pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")


@pytest.fixture
def client(open_service: OpenService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=open_service.url, timeout=120) as opened:
        remove_jobs(opened)
        yield opened
        remove_jobs(opened)


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of 40 frames in five segments, with sound."""
    return Path(film(tmp_path_factory.mktemp("film") / "talk.mp4", num_frames=40, key_frames=8))


def test_a_film_is_that_of_the_command(
    client: httpx.Client, open_service: OpenService, talk: Path, tmp_path: Path
) -> None:
    job = start_one(client, talk.read_bytes())
    ended = wait_for_end(client, job)
    assert (ended["status"], ended["total"], ended["done"], ended["failed"]) == ("done", 1, 1, 0), ended
    assert ended["video"]["frames_total"] == 40
    (tmp_path / "source.png").write_bytes(SOURCE)
    arguments = ["--bundle", str(open_service.folder / "bundle"), "--segment-seconds", str(SEGMENT_SECONDS)]
    made = tmp_path / "made.mp4"
    assert main(["fuse-video", str(tmp_path / "source.png"), str(talk), str(made), *arguments]) == 0
    answer = client.get(f"/v1/jobs/{job}/result")
    assert answer.headers["content-type"] == "video/mp4"
    print(ended, film_hash(made))

"""What the tests of jobs with films share: a client of the open service, and a film."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serving.videos.film_jobs import remove_jobs
from tests.support.serving import OpenService
from tests.video.films import film

NUM_FRAMES, LONG_FRAMES, KEY_FRAMES = 40, 240, 8


@pytest.fixture
def client(open_service: OpenService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=open_service.url, timeout=200) as opened:
        # Other modules leave jobs behind.
        remove_jobs(opened)
        yield opened
        remove_jobs(opened)


@pytest.fixture(scope="session")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of 40 frames, which are five segments, with sound."""
    path = tmp_path_factory.mktemp("film") / "talk.mp4"
    return Path(film(path, num_frames=NUM_FRAMES, key_frames=KEY_FRAMES))


@pytest.fixture(scope="session")
def long_talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film of 240 frames: work for long enough that something can happen meanwhile."""
    path = tmp_path_factory.mktemp("film") / "long.mp4"
    return Path(film(path, num_frames=LONG_FRAMES, key_frames=KEY_FRAMES))

"""Fixtures of the service: an open one that all modules share, and room for a module to start its own."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

# The import of Ray Serve uses deprecated parts of pydantic, so it happens here, before warnings become errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from ray import serve

from fusionray.bundle.bundle import bundle_hash
from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE, WEBHOOK_SECRET_VARIABLE
from fusionray.ray_cluster.connection import find_free_port
from fusionray.runtime.config import RuntimeConfig
from fusionray.serving.application import run
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.jobs import JobConfig, WebhookConfig
from fusionray.serving.config_sections.limits import LimitConfig
from fusionray.serving.config_sections.stages import StageConfig
from fusionray.serving.config_sections.videos import VideoConfig
from fusionray.serving.jobs.store import JobStore
from tests.support.service_logs import ServiceLogs
from tests.support.serving import (
    BODY_SECONDS,
    MAX_BODY_BYTES,
    MAX_JOB_BODY_BYTES,
    MAX_PIXELS,
    MAX_VIDEO_BYTES,
    MAX_VIDEO_FRAMES,
    MAX_VIDEO_PIXELS,
    SEGMENT_SECONDS,
    WEBHOOK_HOST,
    WEBHOOK_SECRET,
    OpenService,
)
from tests.support.tiny_bundle import write_tiny_bundle


@pytest.fixture
def store(tmp_path: Path) -> JobStore:
    """An empty job store."""
    return JobStore(tmp_path / "store", 3600.0)


class OneService:
    """The one service that can run on the Ray of the session at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: OpenService | None = None

    def open(self) -> OpenService:
        """Start the open service, unless it runs."""
        if self.running is None:
            bundle = write_tiny_bundle(self.folder / "bundle")
            config = ServeConfig(
                models=(ModelConfig(bundle=str(bundle.folder)),),
                runtime=RuntimeConfig(threads=1),
                # Tests look at the one replica, and other tests need the CPUs.
                ingress=StageConfig(num_replicas=1, cpus=1),
                limits=LimitConfig(
                    max_body_bytes=MAX_BODY_BYTES,
                    max_job_body_bytes=MAX_JOB_BODY_BYTES,
                    max_video_bytes=MAX_VIDEO_BYTES,
                    max_video_pixels=MAX_VIDEO_PIXELS,
                    max_video_frames=MAX_VIDEO_FRAMES,
                    max_pixels=MAX_PIXELS,
                    body_timeout_seconds=BODY_SECONDS,
                    max_event_streams=2,
                    max_pixel_boost=2,
                ),
                jobs=JobConfig(
                    allowed_uris=((self.folder / "in").as_uri() + "/",),
                    webhooks=WebhookConfig(hosts=(WEBHOOK_HOST,), first_retry_seconds=0.1),
                ),
                videos=VideoConfig(cpus=1, segment_seconds=SEGMENT_SECONDS),
            )
            service = OpenService(find_free_port(), bundle_hash(bundle), self.folder)
            with pytest.MonkeyPatch.context() as environment:
                environment.delenv(KEY_VARIABLE, raising=False)
                environment.setenv(ROOT_VARIABLE, str(self.folder))
                environment.setenv(WEBHOOK_SECRET_VARIABLE, WEBHOOK_SECRET)
                run(config, port=service.port, blocking=False)
            self.running = service
        return self.running

    def clear(self) -> None:
        """Stop the open service, if it runs."""
        if self.running is not None:
            serve.shutdown()
            self.running = None


@pytest.fixture(scope="session")
def one_service(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneService]:
    place = OneService(tmp_path_factory.mktemp("service"))
    yield place
    place.clear()


@pytest.fixture
def service_logs(ray_session: None, proxy_log: socket.socket) -> ServiceLogs:
    """The logs of the services of this test session."""
    return ServiceLogs(Path(os.environ["RAY_TMPDIR"]), proxy_log)


@pytest.fixture(scope="module")
def open_service(one_service: OneService) -> OpenService:
    """The open service, started by the first module that uses it."""
    return one_service.open()


@pytest.fixture(scope="module")
def no_service(one_service: OneService) -> None:
    """Room for a service that the module starts and stops itself."""
    one_service.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The tests of the open service run one after the other, so that it starts once.
    users = [item for item in items if "open_service" in item.fixturenames]  # type: ignore[attr-defined]
    if users:
        first = items.index(users[0])
        others = [item for item in items[first:] if item not in set(users)]
        items[first:] = users + others

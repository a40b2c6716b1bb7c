"""Jobs with films in a store, the service's settings for them, and orders: without HTTP."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusionray.bundle.description import FACE_FUSION
from fusionray.hardware.processes import add_descendants, find_processes, list_processes
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.identities import IdentityConfig
from fusionray.serving.config_sections.jobs import JobConfig
from fusionray.serving.config_sections.videos import VideoConfig
from fusionray.serving.jobs.films import MadeFilm
from fusionray.serving.jobs.folder import JobFolder
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.store import JobStore
from fusionray.serving.pipeline.model_registry import ModelRegistry
from fusionray.serving.schema import FuseOptions
from fusionray.serving.videos.order import VideoOrder, place_order
from fusionray.serving.videos.task import FilmAnswer
from fusionray.serving.videos.worker import TASK_NAME, VideoWorker
from tests.serving.videos.film_jobs import END_SECONDS, SOURCE
from tests.support.serving import SEGMENT_SECONDS
from tests.support.tiny_bundle import write_tiny_bundle
from tests.support.waiting import wait_for

OWNER = "ann"


def write_config(folder: Path, **settings: Any) -> ServeConfig:
    """Make the settings of a service with a quick bundle, all of whose files lie in a folder."""
    bundle = folder / "bundle"
    if not bundle.exists():
        write_tiny_bundle(bundle)
    return ServeConfig(
        models=(ModelConfig(bundle=str(bundle)),),
        jobs=JobConfig(folder=str(folder / "jobs"), poll_seconds=0.1, allowed_uris=(f"{folder.as_uri()}/",)),
        identities=IdentityConfig(folder=str(folder / "identities")),
        videos=VideoConfig(cpus=1, segment_seconds=SEGMENT_SECONDS),
        **settings,
    )


def open_store(config: ServeConfig) -> JobStore:
    return JobStore(Path(config.jobs.folder), 3600.0)


def create(
    store: JobStore, film: Path, uri: str | None = None, reference: bytes | None = None, **options: Any
) -> JobFolder:
    """Create the job of a film, of which it takes a copy; or of its URI. Nobody is similar to a `reference`."""
    copy = store.tmp / "upload"
    if uri is None:
        shutil.copy(film, copy)
    least = None if reference is None else 1.0
    inputs = JobInputs(target_uris=() if uri is None else (uri,), reference_similarity=least)
    fuse = asdict(FuseOptions(**options)) | {"consent": None}
    new = NewJob(
        {"task": FACE_FUSION, "fuse": fuse, "model": "default", "leave_out": [], "steady_colours": False},
        SOURCE,
        [] if uri else [copy],
        inputs,
        reference=reference,
        film_bytes=film.stat().st_size,
    )
    return store.find(store.create(OWNER, new).status.job, OWNER)


def order(folder: JobFolder, config: ServeConfig) -> VideoOrder:
    """Place the order for the film of a job."""
    version = ModelRegistry(config).choose("default")
    return place_order(folder, version)


def start_worker(
    store: JobStore, config: ServeConfig, close: Callable[[JobFolder, FilmAnswer], Future[bool]] | None = None
) -> VideoWorker:
    """Start the worker of a replica in this process."""
    registry = ModelRegistry(config)
    worker = VideoWorker(store, config, registry.choose, close or accept)
    worker.start()
    return worker


def accept(_folder: JobFolder, _answer: FilmAnswer) -> Future[bool]:
    """Let every end of a film count."""
    told: Future[bool] = Future()
    told.set_result(True)
    return told


def wait_for_film(store: JobStore, job: str) -> MadeFilm:
    """Wait until the film of a job is made, and the job has ended."""
    wait_for(lambda: store.status(job, OWNER).state not in ("queued", "running"), END_SECONDS)
    status = store.status(job, OWNER)
    assert status.state == "done", status
    film = store.find(job, OWNER).film
    assert film is not None
    made = film.read_made()
    assert made is not None
    return made


def wait_for_frames(store: JobStore, job: str, stage: str) -> None:
    """Wait until some segments of a film are through a stage."""
    film = store.find(job, OWNER).film
    assert film is not None
    pattern = {"finding": "scan-*.npz", "fusing": "segment-*.mp4"}[stage]
    wait_for(lambda: len(list(film.path.glob(f".*.work/{pattern}"))) >= 2, END_SECONDS)
    assert store.status(job, OWNER).state == "running"


def find_tasks() -> list[int]:
    """Find the processes of this session's Ray that make films."""
    ours = add_descendants({os.getpid()}, list_processes())
    return sorted(ours & set(find_processes(f"ray::{TASK_NAME}")))


def is_left(answer: FilmAnswer) -> bool:
    """Tell whether a task has left without a film."""
    return answer == FilmAnswer()

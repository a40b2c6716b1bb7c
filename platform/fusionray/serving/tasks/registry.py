"""The tasks that have their own routes; every other task makes a picture of named pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ray.serve.handle import DeploymentHandle

from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER
from fusionray.errors import ConfigInvalid
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.routes_pictures import check_names
from fusionray.serving.jobs.service import JobService
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.tasks.face_fusion import FaceFusion
from fusionray.serving.tasks.pictures import PictureTask
from fusionray.serving.tasks.served_task import ServedTask
from fusionray.serving.tasks.style_transfer import StyleTransfer


@dataclass(frozen=True)
class Parts:
    """The parts of an ingress replica that tasks use; `faces` is the face stage if it has a deployment of its own.

    `jobs` is there if a task of `JOB_TASKS` is served.
    """

    config: ServeConfig
    requests: RequestService
    generators: GeneratorService
    jobs: JobService | None = None
    faces: DeploymentHandle | None = None


def open_face_fusion(parts: Parts) -> ServedTask:
    assert parts.jobs is not None
    return FaceFusion(parts.config, parts.requests, parts.generators, parts.jobs, parts.faces)


def open_style_transfer(parts: Parts) -> ServedTask:
    assert parts.jobs is not None
    return StyleTransfer(parts.config, parts.requests, parts.generators, parts.jobs)


OpenTask = Callable[[Parts], ServedTask]

TASKS: dict[str, OpenTask] = {FACE_FUSION: open_face_fusion, STYLE_TRANSFER: open_style_transfer}
# The tasks whose pictures and films can be made by jobs.
JOB_TASKS = (FACE_FUSION, STYLE_TRANSFER)


def open_task(name: str, inputs: tuple[str, ...], parts: Parts) -> ServedTask:
    """Open the task of models that take the named inputs.

    Raises: BundleInvalid if the names cannot name a route and its fields.
    """
    if name in TASKS:
        return TASKS[name](parts)
    check_names(name, inputs)
    return PictureTask(name, inputs, parts.config, parts.requests, parts.generators)


def check_tasks(config: ServeConfig, tasks: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse tasks and settings that cannot be served, before anything starts.

    Raises: BundleInvalid as `open_task` does; ConfigInvalid for a setting that would have no effect.
    """
    for name, inputs in tasks.items():
        if name not in TASKS:
            check_names(name, inputs)
    if config.faces.separate_deployment and FACE_FUSION not in tasks:
        raise ConfigInvalid(
            "faces.separate_deployment: no model of face fusion is served, which alone uses it; leave it out"
        )

"""The tasks that have a class of their own; every other task makes a picture of named pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER
from fusionray.errors import BundleInvalid, ConfigInvalid
from fusionray.serving.config import ServeConfig
from fusionray.serving.tasks.face_fusion import FaceFusion
from fusionray.serving.tasks.parts import Parts
from fusionray.serving.tasks.pictures import PictureTask
from fusionray.serving.tasks.served_task import ServedTask
from fusionray.serving.tasks.style_transfer import StyleTransfer

OpenTask = Callable[[Parts], ServedTask]

TASKS: dict[str, OpenTask] = {FACE_FUSION: FaceFusion, STYLE_TRANSFER: StyleTransfer}
# The tasks whose pictures and films can be made by jobs.
JOB_TASKS = (FACE_FUSION, STYLE_TRANSFER)
# Fields of forms that are not pictures, and routes that no task may take.
OPTION_FIELDS = frozenset({"model", "format", "mark", "consent"})
OTHER_ROUTES = frozenset({"batches", "faces", "fuse", "identities", "jobs", "keys", "models", "stylize", "usage"})


def open_task(name: str, inputs: tuple[str, ...], parts: Parts) -> ServedTask:
    """Open the task of models that take the named inputs.

    Raises: BundleInvalid if the names cannot name a route and its fields.
    """
    if name in TASKS:
        return TASKS[name](parts)
    check_names(name, inputs)
    return PictureTask(name, inputs, parts)


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


def check_names(task: str, inputs: Sequence[str]) -> None:
    """Refuse a task or an input whose name the service already uses.

    Raises: BundleInvalid.
    """
    if task in OTHER_ROUTES:
        raise BundleInvalid(f"task '{task}': /v1/{task} is a route of the service; export under another name")
    taken = [name for name in inputs if name in OPTION_FIELDS or not name.isidentifier()]
    if taken:
        raise BundleInvalid(
            f"task '{task}': its input '{taken[0]}' cannot be a field of a form (an identifier, none of "
            f"{', '.join(sorted(OPTION_FIELDS))}); export with another name"
        )

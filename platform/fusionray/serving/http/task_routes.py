"""The routes of each served task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from fusionray.bundle.description import FACE_FUSION, STYLE_TRANSFER
from fusionray.serving.http.jobs.face_jobs import add_face_job_route
from fusionray.serving.http.jobs.style_jobs import add_style_job_route
from fusionray.serving.http.routes.batches import add_batch_route
from fusionray.serving.http.routes.faces import add_face_route
from fusionray.serving.http.routes.fuse import add_fuse_route
from fusionray.serving.http.routes.identities import add_identity_routes
from fusionray.serving.http.routes.pictures import add_picture_route
from fusionray.serving.http.routes.style import add_style_route
from fusionray.serving.tasks.face_fusion import FaceFusion
from fusionray.serving.tasks.style_transfer import StyleTransfer

# Adds the routes of a task; the second argument is what `open_task` returns for its name.
AddRoutes = Callable[[FastAPI, Any], None]


def add_face_fusion_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes that find faces, fuse pictures, start jobs and store identities."""
    add_fuse_route(api, task)
    add_face_route(api, task)
    add_identity_routes(api, task)
    add_batch_route(api, task)
    add_face_job_route(api, task.jobs)


def add_style_transfer_routes(api: FastAPI, task: StyleTransfer) -> None:
    """Add the routes below `/v1/stylize`, which have fields that other tasks lack."""
    add_style_route(api, task)
    add_style_job_route(api, task.jobs)


# Any other task makes a picture of named pictures: `POST /v1/TASK`, a form field for each.
ROUTES: dict[str, AddRoutes] = {FACE_FUSION: add_face_fusion_routes, STYLE_TRANSFER: add_style_transfer_routes}


def add_task_routes(api: FastAPI, name: str, task: Any) -> None:
    """Add the routes of the task with this name."""
    ROUTES.get(name, add_picture_route)(api, task)

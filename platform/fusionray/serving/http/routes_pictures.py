"""One picture made of named pictures: the route of a task that brings none of its own."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, FastAPI, Request, Response, UploadFile

from fusionray.errors import BundleInvalid
from fusionray.serving.http.forms import find_caller, read_model, read_picture_options
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import answer, answer_picture, picture_responses
from fusionray.serving.pipeline.request_service import PictureRequest
from fusionray.serving.schema import PictureOptions, Problem

if TYPE_CHECKING:
    from fusionray.serving.tasks.pictures import PictureTask

MADE = picture_responses("The picture that was made, signed")
# What forms hold beside pictures, and what is served beside tasks.
OPTION_FIELDS = frozenset({"model", "format", "mark", "consent"})
OTHER_ROUTES = frozenset({"batches", "fuse", "identities", "jobs", "models"})


def check_names(task: str, inputs: Sequence[str]) -> None:
    """Refuse names that the service uses otherwise.

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


def add_picture_route(api: FastAPI, task: PictureTask) -> None:
    """Add the route that makes one picture."""
    read_pictures = build_reader(task.inputs)

    @api.post(f"/v1/{task.name}", name=task.name, response_class=Response, responses=MADE | problems(*OF_PICTURES))
    async def make(
        request: Request,
        options: Annotated[PictureOptions, Depends(read_picture_options)],
        model: Annotated[str | None, Depends(read_model)],
        # A default, for an annotation is a string that could not name a local function.
        pictures: dict[str, bytes] = Depends(read_pictures),  # noqa: B008
    ) -> Response:
        caller = find_caller(request)
        if refused := await task.requests.admit(caller, 1):
            return answer(refused)
        reply = await task.make(PictureRequest(task.name, caller, pictures, options, model))
        return answer(reply) if isinstance(reply, Problem) else answer_picture(reply)


def build_reader(inputs: Sequence[str]) -> Callable[..., Awaitable[dict[str, bytes]]]:
    """Build what reads a file for each input out of a form; FastAPI finds the names in its signature."""

    async def read(**uploads: UploadFile) -> dict[str, bytes]:
        return {name: await upload.read() for name, upload in uploads.items()}

    fields = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=UploadFile) for name in inputs]
    read.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
    return read

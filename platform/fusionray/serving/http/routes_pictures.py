"""The route of a task that adds none of its own: it makes one picture of named pictures."""

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
# Fields of forms that are not pictures, and routes that no task may take.
OPTION_FIELDS = frozenset({"model", "format", "mark", "consent"})
OTHER_ROUTES = frozenset({"batches", "faces", "fuse", "identities", "jobs", "keys", "models", "usage"})


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


def add_picture_route(api: FastAPI, task: PictureTask) -> None:
    """Add the route that makes one picture."""
    read_pictures = build_reader(task.inputs)

    @api.post(f"/v1/{task.name}", name=task.name, response_class=Response, responses=MADE | problems(*OF_PICTURES))
    async def make(
        request: Request,
        options: Annotated[PictureOptions, Depends(read_picture_options)],
        model: Annotated[str | None, Depends(read_model)],
        # A default value, because annotations are strings here and could not name a local function.
        pictures: dict[str, bytes] = Depends(read_pictures),  # noqa: B008
    ) -> Response:
        caller = find_caller(request)
        admitted = await task.requests.admit(caller, 1)
        if isinstance(admitted, Problem):
            return answer(admitted)
        reply = await task.make(PictureRequest(task.name, caller, pictures, options, model))
        if isinstance(reply, Problem):
            task.requests.refund(admitted, 1)
            return answer(reply)
        return answer_picture(reply)


def build_reader(inputs: Sequence[str]) -> Callable[..., Awaitable[dict[str, bytes]]]:
    """Build the dependency that reads one file of a form for each input; FastAPI takes the names from its signature."""

    async def read(**uploads: UploadFile) -> dict[str, bytes]:
        return {name: await upload.read() for name, upload in uploads.items()}

    fields = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=UploadFile) for name in inputs]
    read.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
    return read

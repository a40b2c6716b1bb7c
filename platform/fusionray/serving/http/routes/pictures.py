"""The route of a task that adds none of its own: it makes one picture of named pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response, UploadFile
from pydantic import Field, create_model

from fusionray.serving.http.forms import AS_FORM, AS_QUERY, PictureForm, PictureQuery, find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import answer_request, picture_responses
from fusionray.serving.pipeline.request_service import PictureRequest
from fusionray.serving.tasks.pictures import PictureTask

MADE = picture_responses("The picture that was made, signed")


def add_picture_route(api: FastAPI, task: PictureTask) -> None:
    """Add the route that makes one picture."""

    async def make(
        request: Request, query: Annotated[PictureQuery, AS_QUERY], form: Annotated[PictureForm, AS_FORM]
    ) -> Response:
        options, model = form.read_picture_options(request, query), form.choose_model(query)
        pictures = {name: await getattr(form, field).read() for field, name in name_fields(task.inputs).items()}
        return await answer_request(task, PictureRequest(task.name, find_caller(request), pictures, options, model))

    # The fields of its form depend on the task; annotations are strings here and could not name a local class.
    make.__annotations__["form"] = Annotated[build_form(task.name, task.inputs), AS_FORM]
    responses = MADE | problems(*OF_PICTURES)
    summary = f"Make a picture by {task.name}"
    api.post(f"/v1/{task.name}", name=task.name, summary=summary, response_class=Response, responses=responses)(make)


def name_fields(inputs: Sequence[str]) -> dict[str, str]:
    """Name the attributes in which a form holds its pictures: an input may have the name of a method of pydantic."""
    return {f"picture_{number}": name for number, name in enumerate(inputs)}


def build_form(task: str, inputs: Sequence[str]) -> type[PictureForm]:
    """Build the form of a task: the options of every task, and a file for each input."""
    fields: dict[str, Any] = {
        field: (UploadFile, Field(alias=name, description=f"The picture `{name}`."))
        for field, name in name_fields(inputs).items()
    }
    form: type[PictureForm] = create_model(f"{task.title().replace('_', '')}Form", __base__=PictureForm, **fields)
    return form

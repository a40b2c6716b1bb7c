"""The route that finds the faces of a picture, so that a client can choose among them."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Request, Response, UploadFile
from pydantic import Field

from fusionray.serving.http.answers import Face, Faces
from fusionray.serving.http.forms import AS_FORM, Form, find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.schema import FoundFace, Problem
from fusionray.serving.tasks.face_fusion import FaceFusion


class FindForm(Form):
    """The form of `POST /v1/faces`."""

    target: UploadFile = Field(description="The picture whose faces are found.")
    reference: UploadFile | None = Field(
        None, description="Each face is compared with the largest one of this picture."
    )


def add_face_route(api: FastAPI, task: FaceFusion) -> None:
    """Add the route of faces."""

    @api.post(
        "/v1/faces",
        summary="Find the faces of a picture",
        response_description="The faces, the largest first.",
        response_model=Faces,
        responses=problems(*OF_PICTURES),
        response_model_exclude_none=True,
    )
    async def find(request: Request, response: Response, form: Annotated[FindForm, AS_FORM]) -> Response | Faces:
        caller = find_caller(request)
        admitted = await task.requests.admit(caller, 0)
        if isinstance(admitted, Problem):
            return answer(admitted)
        reference = await form.reference.read() if form.reference is not None else None
        reply = await task.service.find_faces(caller, await form.target.read(), reference)
        if isinstance(reply, Problem):
            return answer(reply)
        response.headers.update(NO_STORE)
        faces = [describe_face(index, face) for index, face in enumerate(reply.faces)]
        return Faces(width=reply.width, height=reply.height, faces=faces)


def describe_face(index: int, face: FoundFace) -> Face:
    """Describe a face: its number for the field `faces`, its box and five points in pixels, the detector's score.

    With a reference, also its `similarity`, -1 to 1.
    """
    return Face(
        index=index,
        box=[round(value) for value in face.box],
        landmarks=[[round(value, 1) for value in point] for point in face.landmarks],
        score=round(face.score, 3),
        similarity=None if face.similarity is None else round(face.similarity, 4),
    )

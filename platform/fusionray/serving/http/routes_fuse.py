"""The route that fuses one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, FastAPI, File, Request, Response, UploadFile

from fusionray.serving.http.forms import Sources, find_caller, read_model, read_options, read_reference, read_sources
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import answer, answer_picture, picture_responses
from fusionray.serving.pipeline.fusion_service import FuseRequest
from fusionray.serving.schema import FuseOptions, Problem, ReferenceFace

if TYPE_CHECKING:
    from fusionray.serving.tasks.face_fusion import FaceFusion

FUSED = picture_responses("The fused picture, signed")


def add_fuse_route(api: FastAPI, task: FaceFusion) -> None:
    """Add the route of single pictures."""

    @api.post("/v1/fuse", response_class=Response, responses=FUSED | problems(*OF_PICTURES))
    async def fuse(
        request: Request,
        *,
        sources: Annotated[Sources, Depends(read_sources)],
        target: Annotated[UploadFile, File(description="The picture to change.")],
        options: Annotated[FuseOptions, Depends(read_options)],
        model: Annotated[str | None, Depends(read_model)],
        reference: Annotated[ReferenceFace | None, Depends(read_reference)],
    ) -> Response:
        caller = find_caller(request)
        admitted = await task.requests.admit(caller, 1)
        if isinstance(admitted, Problem):
            return answer(admitted)
        reply = await task.service.fuse(FuseRequest(caller, sources, await target.read(), options, model, reference))
        if isinstance(reply, Problem):
            task.requests.refund(admitted, 1)
            return answer(reply)
        return answer_picture(reply)

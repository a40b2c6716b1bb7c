"""The route that fuses one picture."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Request, Response

from fusionray.serving.http.forms import AS_FORM, AS_QUERY, FuseForm, FuseQuery, find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import answer, answer_picture, picture_responses
from fusionray.serving.pipeline.fusion_service import FuseRequest
from fusionray.serving.schema import Problem
from fusionray.serving.tasks.face_fusion import FaceFusion

FUSED = picture_responses("The fused picture, signed")


def add_fuse_route(api: FastAPI, task: FaceFusion) -> None:
    """Add the route of single pictures."""

    @api.post(
        "/v1/fuse",
        summary="Fuse a face into a picture",
        response_class=Response,
        responses=FUSED | problems(*OF_PICTURES),
    )
    async def fuse(
        request: Request, form: Annotated[FuseForm, AS_FORM], query: Annotated[FuseQuery, AS_QUERY]
    ) -> Response:
        caller = find_caller(request)
        options = form.read_options(request, query)
        sources, target, reference = (
            await form.read_sources(request, options),
            await form.target.read(),
            await form.read_reference(),
        )
        admitted = await task.requests.admit(caller, 1)
        if isinstance(admitted, Problem):
            return answer(admitted)
        model = form.choose_model(query)
        reply = await task.service.fuse(FuseRequest(caller, sources, target, options, model, reference))
        if isinstance(reply, Problem):
            task.requests.refund(admitted, 1)
            return answer(reply)
        return answer_picture(reply)

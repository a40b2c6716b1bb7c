"""Routes for stored source faces: analysed once, then used by a handle that only the client knows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import FastAPI, Form, Request, Response, UploadFile

from fusionray.errors import UnknownIdentity
from fusionray.serving.http.forms import find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.problems import explain
from fusionray.serving.http.responses import answer, write_time
from fusionray.serving.schema import Problem

if TYPE_CHECKING:
    from fusionray.serving.tasks.face_fusion import FaceFusion


def add_identity_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes under /v1/identities."""

    @api.post("/v1/identities", status_code=201, response_model=None, responses=problems(*OF_PICTURES, 507))
    async def keep(
        request: Request,
        response: Response,
        source: UploadFile,
        consent: Annotated[str | None, Form(max_length=4096)] = None,
    ) -> Response | dict[str, Any]:
        caller = find_caller(request)
        admitted = await task.requests.admit(caller, 0)
        if isinstance(admitted, Problem):
            return answer(admitted)
        reply = await task.service.keep_identity(caller, await source.read(), consent)
        if isinstance(reply, Problem):
            return answer(reply)
        response.headers["Location"] = f"/v1/identities/{reply.identity}"
        response.headers["Cache-Control"] = "no-store"
        return {
            "identity": reply.identity,
            "expires_at": write_time(reply.expires_at),
            "box": [round(value) for value in reply.box],
        }

    @api.get("/v1/identities/{identity}", response_model=None, responses=problems(404))
    async def look(request: Request, identity: str) -> Response | dict[str, Any]:
        loop = asyncio.get_running_loop()
        try:
            kept = await loop.run_in_executor(None, task.identities.get, identity, find_caller(request).name)
        except UnknownIdentity as error:
            return answer(explain(error))
        return {"identity": identity, "expires_at": write_time(kept.expires_at)}

    @api.delete("/v1/identities/{identity}", status_code=204, responses=problems(404))
    async def forget(request: Request, identity: str) -> Response:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, task.identities.remove, identity, find_caller(request).name)
        except UnknownIdentity as error:
            return answer(explain(error))
        return Response(status_code=204)

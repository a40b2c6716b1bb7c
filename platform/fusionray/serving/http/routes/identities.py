"""Routes for stored source faces: analysed once, then used by a handle that only the client knows.

A handle is a key: it stands in a header or a form, never in an address, which proxies log.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Header, Request, Response, UploadFile
from pydantic import Field

from fusionray.serving.http.answers import Identity, KeptIdentity
from fusionray.serving.http.forms import AS_FORM, CONSENT, Form, find_caller
from fusionray.serving.http.openapi import OF_PICTURES, problems
from fusionray.serving.http.responses import NO_STORE, answer
from fusionray.serving.identities.store import HANDLE_PATTERN
from fusionray.serving.schema import Problem, write_time
from fusionray.serving.tasks.face_fusion import FaceFusion

HANDLE_HEADER = "X-FusionRay-Identity"
Handle = Annotated[
    str,
    Header(alias=HANDLE_HEADER, pattern=f"^{HANDLE_PATTERN}$", description="The handle that `POST` answered."),
]


class KeepForm(Form):
    """The form of `POST /v1/identities`."""

    source: UploadFile = Field(description="The picture whose largest face is stored.")
    consent: str | None = Field(None, max_length=4096, description=CONSENT)


def add_identity_routes(api: FastAPI, task: FaceFusion) -> None:
    """Add the routes of /v1/identities."""

    @api.post(
        "/v1/identities",
        summary="Store a face",
        response_description="Its handle, which is told this once.",
        status_code=201,
        response_model=KeptIdentity,
        responses=problems(*OF_PICTURES, 507),
    )
    async def keep(request: Request, response: Response, form: Annotated[KeepForm, AS_FORM]) -> Response | KeptIdentity:
        caller = find_caller(request)
        admitted = await task.requests.admit(caller, 0)
        if isinstance(admitted, Problem):
            return answer(admitted)
        reply = await task.service.keep_identity(caller, await form.source.read(), form.consent)
        if isinstance(reply, Problem):
            return answer(reply)
        response.headers.update(NO_STORE)
        box = [round(value) for value in reply.box]
        return KeptIdentity(identity=reply.identity, expires_at=write_time(reply.expires_at), box=box)

    @api.get(
        "/v1/identities",
        summary="Look at a stored face",
        response_description="When it expires.",
        response_model=Identity,
        responses=problems(404, 422),
    )
    async def find(request: Request, response: Response, identity: Handle) -> Response | Identity:
        reply = await task.service.find_identity(find_caller(request), identity)
        if isinstance(reply, Problem):
            return answer(reply)
        response.headers.update(NO_STORE)
        return Identity(expires_at=write_time(reply.expires_at))

    @api.delete(
        "/v1/identities",
        summary="Remove a stored face",
        response_description="It is removed.",
        status_code=204,
        responses=problems(404, 422),
    )
    async def remove(request: Request, identity: Handle) -> Response:
        reply = await task.service.remove_identity(find_caller(request), identity)
        return answer(reply) if isinstance(reply, Problem) else Response(status_code=204)

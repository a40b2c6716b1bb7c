"""The route that starts a job of style transfer."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, cast

from fastapi import FastAPI, Request, Response, UploadFile
from pydantic import Field

from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.serving.http.forms import AS_FORM, AS_QUERY, PictureForm, PictureQuery, build_refusal
from fusionray.serving.http.jobs.face_jobs import ONLY_PICTURES
from fusionray.serving.http.jobs.forms import JobFields, JobForm, Uri, find_sent, read_idempotency_key
from fusionray.serving.http.jobs.starting import IdempotencyKey, add_start_route, answer_start
from fusionray.serving.http.jobs.uploads import StoredUpload
from fusionray.serving.http.routes.style import StyleFields
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.tasks.job_service import JobService


class StyleJobForm(PictureForm, StyleFields, JobFields):
    """The form of `POST /v1/stylize/jobs`."""

    content: list[UploadFile] = Field(
        [], description="The pictures to paint, in order; or one film, told by its content."
    )
    content_uri: list[Uri] = Field(
        [], description="URIs of further pictures, below an allowed folder; their numbers come after."
    )

    async def read(self, request: Request, query: PictureQuery, idempotency_key: str | None) -> JobForm:
        """Read the request. The consent token, a secret, is kept apart from the options.

        Raises: RequestValidationError; HTTPException 400 for a malformed idempotency key.
        """
        options = self.read_picture_options(request, query)
        key = read_idempotency_key(idempotency_key)
        if not self.content and not self.content_uri:
            raise build_refusal("content", "send one or more of `content` (a picture) and `content_uri`")
        sent = find_sent(await request.form(), request.query_params)
        return JobForm(
            STYLE_TRANSFER,
            "content",
            {"picture": asdict(replace(options, consent=None)), "painting": self.read_painting()},
            cast("list[StoredUpload]", self.content),
            JobInputs(consent=options.consent, target_uris=tuple(self.content_uri)),
            {"leave_out": list(self.leave_out)},
            self.webhook,
            key,
            styles=cast("list[StoredUpload]", self.style),
            film_refusals=[("format", ONLY_PICTURES)] if "format" in sent else [],
        )


def add_style_job_route(api: FastAPI, jobs: JobService) -> None:
    """Add the route."""

    async def create(
        request: Request,
        response: Response,
        *,
        fields: Annotated[StyleJobForm, AS_FORM],
        query: Annotated[PictureQuery, AS_QUERY],
        idempotency_key: IdempotencyKey = None,
    ) -> Any:
        form = await fields.read(request, query, idempotency_key)
        return await answer_start(request, response, jobs, form, fields.choose_model(query))

    add_start_route(
        api, jobs, "/v1/stylize/jobs", create, film_field="content", summary="Paint many pictures, or a film, as a job"
    )

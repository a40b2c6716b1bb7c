"""The route that starts a job of face fusion."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Any, cast

from fastapi import FastAPI, Request, Response, UploadFile
from pydantic import Field

from fusionray.bundle.description import FACE_FUSION
from fusionray.runtime.face_preprocessor import read_numbers
from fusionray.serving.http.forms import AS_FORM, AS_QUERY, FaceForm, FuseQuery, build_refusal
from fusionray.serving.http.jobs.forms import (
    JobFields,
    JobForm,
    Uri,
    check_single,
    find_sent,
    read_idempotency_key,
)
from fusionray.serving.http.jobs.starting import IdempotencyKey, add_start_route, answer_start
from fusionray.serving.http.jobs.uploads import StoredUpload
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.uris import LONGEST_URI
from fusionray.serving.tasks.job_service import JobService

ONLY_PICTURES = "only pictures have it, and the target is a film; leave it out"
NO_NUMBERS = "a film takes largest (the person in most frames), all or reference, no numbers"


class FaceJobForm(FaceForm, JobFields):
    """The form of `POST /v1/jobs`."""

    source: UploadFile | None = Field(None, description="The picture whose face is taken.")
    identity: str | None = Field(None, max_length=100, description="Handle of a stored face.")
    source_uri: str | None = Field(
        None, max_length=LONGEST_URI, description="URI of the source, below an allowed folder."
    )
    target: list[UploadFile] = Field(
        [], description="The pictures to change, in order; or one film, told by its content."
    )
    target_uri: list[Uri] = Field(
        [], description="URIs of further pictures, below an allowed folder; their numbers come after."
    )
    steady_colours: bool = Field(
        False, description="Average the colours of a film's fused faces over some frames, for a model that flickers."
    )

    async def read(self, request: Request, query: FuseQuery, idempotency_key: str | None) -> JobForm:
        """Read the request. The consent token, a secret, is kept apart from the options.

        Raises: RequestValidationError; HTTPException 400 for a malformed idempotency key.
        """
        options = self.read_options(request, query)
        key = read_idempotency_key(idempotency_key)
        form = await request.form()
        check_single(form, "source", "identity", "source_uri", "reference")
        if sum(field is not None for field in (self.source, self.identity, self.source_uri)) != 1:
            raise build_refusal("source", "send one of `source` (a picture), `identity` (a handle) and `source_uri`")
        if not self.target and not self.target_uri:
            raise build_refusal("target", "send one or more of `target` (a picture) and `target_uri`")
        sent = find_sent(form, request.query_params)
        refusals = [("faces", NO_NUMBERS)] if read_numbers(options.faces) else []
        refusals += [(name, ONLY_PICTURES) for name in ("format", "strength") if name in sent]
        return JobForm(
            FACE_FUSION,
            "target",
            {"fuse": asdict(replace(options, consent=None))},
            cast("list[StoredUpload]", self.target),
            JobInputs(
                None,
                self.identity,
                self.source_uri,
                options.consent,
                tuple(self.target_uri),
                None,
                self.reference_similarity if self.reference else None,
            ),
            {"leave_out": list(self.leave_out), "steady_colours": self.steady_colours},
            self.webhook,
            key,
            source=cast("StoredUpload | None", self.source),
            reference=cast("StoredUpload | None", self.reference),
            film_refusals=refusals,
        )


def add_face_job_route(api: FastAPI, jobs: JobService) -> None:
    """Add the route."""

    async def create(
        request: Request,
        response: Response,
        *,
        fields: Annotated[FaceJobForm, AS_FORM],
        query: Annotated[FuseQuery, AS_QUERY],
        idempotency_key: IdempotencyKey = None,
    ) -> Any:
        form = await fields.read(request, query, idempotency_key)
        return await answer_start(request, response, jobs, form, fields.choose_model(query))

    add_start_route(
        api, jobs, "/v1/jobs", create, film_field="target", summary="Fuse faces in many pictures, or a film, as a job"
    )

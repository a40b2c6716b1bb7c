"""What a client sends to start a job: pictures or URIs, options, a webhook, and an idempotency key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, Literal, cast

from fastapi import Request, UploadFile
from pydantic import Field
from starlette.exceptions import HTTPException

from fusionray.serving.addresses import is_loopback
from fusionray.serving.http.forms import FaceForm, build_refusal
from fusionray.serving.http.jobs.uploads import StoredUpload
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.post import name_host, read_url
from fusionray.serving.jobs.service_key import ServiceKey
from fusionray.serving.jobs.uris import LONGEST_URI, UriReader, is_plain_uri
from fusionray.serving.schema import FuseOptions, Problem

StreamKind = Literal["audio", "subtitle", "data", "attachment", "video"]
Uri = Annotated[str, Field(max_length=LONGEST_URI)]
# A string of RFC 8941, in quotation marks; as many clients send it, also without them.
QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"')
BARE_KEY = re.compile(r"[A-Za-z0-9._~:/+=-]{1,255}")


@dataclass(frozen=True)
class JobForm:
    """The pictures and URIs of a request. One of `source`, `identity` and `source_uri` is set; `sent_fields` names all
    fields of the form and the query.
    """

    targets: list[StoredUpload]
    source: StoredUpload | None
    identity: str | None
    source_uri: str | None
    target_uris: tuple[str, ...]
    webhook: str | None
    idempotency_key: str | None
    reference: StoredUpload | None
    reference_similarity: float
    leave_out: tuple[str, ...]
    sent_fields: frozenset[str]

    @property
    def total(self) -> int:
        """Return the number of targets."""
        return len(self.targets) + len(self.target_uris)


class JobFields(FaceForm):
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
    leave_out: list[StreamKind] = Field(
        [], description="Kinds of streams of a film that are not copied, because MP4 or MOV cannot hold them."
    )
    webhook: str | None = Field(None, max_length=LONGEST_URI, description="URL that is told when the job has ended.")


async def read_form(request: Request, fields: JobFields, idempotency_key: str | None) -> JobForm:
    """Read the pictures of a request.

    Raises: RequestValidationError; HTTPException 400 for a malformed idempotency key.
    """
    key = read_idempotency_key(idempotency_key)
    # Of a repeated field, the types of the form take the last one.
    sent = await request.form()
    for name in ("source", "identity", "source_uri", "reference"):
        if (num_sent := len(sent.getlist(name))) > 1:
            raise build_refusal(name, f"{num_sent} were sent; a job has one")
    if sum(field is not None for field in (fields.source, fields.identity, fields.source_uri)) != 1:
        raise build_refusal("source", "send one of `source` (a picture), `identity` (a handle) and `source_uri`")
    if not fields.target and not fields.target_uri:
        raise build_refusal("target", "send one or more of `target` (a picture) and `target_uri`")
    return JobForm(
        cast("list[StoredUpload]", fields.target),
        cast("StoredUpload | None", fields.source),
        fields.identity,
        fields.source_uri,
        tuple(fields.target_uri),
        fields.webhook,
        key,
        cast("StoredUpload | None", fields.reference),
        fields.reference_similarity,
        tuple(fields.leave_out),
        frozenset(sent.keys()) | frozenset(request.query_params.keys()),
    )


def read_idempotency_key(header: str | None) -> str | None:
    """Read the header `Idempotency-Key`.

    Source: draft-ietf-httpapi-idempotency-key-header-07, section 2.

    Raises: HTTPException 400.
    """
    if header is None:
        return None
    if quoted := QUOTED_KEY.fullmatch(header):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if BARE_KEY.fullmatch(header):
        return header
    raise HTTPException(400, 'Idempotency-Key: send 1 to 255 ASCII characters in quotation marks, such as "8e03978e"')


def check_uris(form: JobForm, reader: UriReader) -> Problem | None:
    """Refuse URIs that are malformed or not allowed; nothing is read."""
    for uri in (*form.target_uris, *(() if form.source_uri is None else (form.source_uri,))):
        if not is_plain_uri(uri):
            detail = "a URI is not plain (scheme://host/path without user, query, '..' or escaped slashes); mend it"
            return Problem(422, "bad_uri", "Malformed URI", detail)
        if reader.find_prefix(uri) is None:
            detail = "a URI is not below a folder that this service reads; send the picture itself, or ask the operator"
            return Problem(403, "uri_not_allowed", "Not allowed", detail)
    return None


def find_host(url: str) -> str | None:
    """Find the host of a webhook, as the settings name it; None if the URL cannot be used."""
    parts = read_url(url)
    return None if parts is None else name_host(parts)


def check_webhook(url: str | None, hosts: Sequence[str]) -> Problem | None:
    """Refuse a webhook that is malformed, or whose host is not one of those that the settings name."""
    if url is None:
        return None
    parts = read_url(url)
    if parts is None:
        return Problem(422, "bad_webhook", "Malformed webhook", "webhook: send an https URL without user and fragment")
    if name_host(parts) in hosts and (parts.scheme == "https" or is_loopback(str(parts.hostname))):
        return None
    detail = "webhook: this service sends nothing to that host, or not without TLS; ask the operator to list it"
    return Problem(403, "webhook_not_allowed", "Not allowed", detail)


def build_job(
    form: JobForm, options: FuseOptions, model: str, key: ServiceKey, film_bytes: int | None = None
) -> NewJob:
    """Build the job of a request; `film_bytes` is the length of the target if it is a film.

    The consent token, a secret, is kept apart from the options.
    """
    job_options: dict[str, Any] = {"fuse": asdict(replace(options, consent=None)), "model": model}
    if film_bytes is not None:
        job_options["leave_out"] = form.leave_out
    least = form.reference_similarity if form.reference else None
    inputs = JobInputs(None, form.identity, form.source_uri, options.consent, form.target_uris, None, least)
    fingerprint = None
    if form.idempotency_key is not None:
        pictures = [upload.digest.hexdigest() for upload in form.targets]
        source, reference = (each and each.digest.hexdigest() for each in (form.source, form.reference))
        content = [job_options, asdict(inputs), form.webhook, source, reference, pictures]
        fingerprint = key.name("request", json.dumps(content, sort_keys=True))
    return NewJob(
        job_options,
        form.source.path if form.source else None,
        [upload.path for upload in form.targets],
        inputs,
        form.webhook,
        find_host(form.webhook) if form.webhook else None,
        form.idempotency_key,
        fingerprint,
        form.reference.path if form.reference else None,
        film_bytes,
    )

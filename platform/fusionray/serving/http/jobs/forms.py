"""What a client sends to start a job, whatever its task: targets or URIs, a webhook, and an idempotency key."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from starlette.datastructures import FormData, QueryParams
from starlette.exceptions import HTTPException

from fusionray.serving.addresses import is_loopback
from fusionray.serving.http.forms import build_refusal
from fusionray.serving.http.jobs.uploads import StoredUpload
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.new_job import NewJob
from fusionray.serving.jobs.post import name_host, read_url
from fusionray.serving.jobs.service_key import ServiceKey
from fusionray.serving.jobs.uris import LONGEST_URI, UriReader, is_plain_uri
from fusionray.serving.schema import Problem

StreamKind = Literal["audio", "subtitle", "data", "attachment", "video"]
Uri = Annotated[str, Field(max_length=LONGEST_URI)]
# A string of RFC 8941, in quotation marks; as many clients send it, also without them.
QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\]){1,255})"')
BARE_KEY = re.compile(r"[A-Za-z0-9._~:/+=-]{1,255}")


@dataclass(frozen=True)
class JobForm:
    """What a request sends, whatever its task.

    `role`: what the task calls its targets; `options`: what the task reads of a record, as JSON; `film_options`: the
    same of films, which pictures cannot have; `inputs`: what is no picture; `film_refusals`: fields, and why a film
    cannot have them.
    """

    task: str
    role: str
    options: dict[str, Any]
    targets: Sequence[StoredUpload]
    inputs: JobInputs
    film_options: dict[str, Any]
    webhook: str | None
    idempotency_key: str | None
    source: StoredUpload | None = None
    reference: StoredUpload | None = None
    styles: Sequence[StoredUpload] = ()
    film_refusals: Sequence[tuple[str, str]] = ()

    @property
    def total(self) -> int:
        """Return the number of targets."""
        return len(self.targets) + len(self.inputs.target_uris)


class JobFields(BaseModel):
    """The fields that every form of a job has beside those of its task."""

    leave_out: list[StreamKind] = Field(
        [], description="Kinds of streams of a film that are not copied, because MP4 or MOV cannot hold them."
    )
    webhook: str | None = Field(None, max_length=LONGEST_URI, description="URL that is told when the job has ended.")


def find_sent(form: FormData, query: QueryParams) -> frozenset[str]:
    """Name the fields of a form and a query that were sent."""
    return frozenset(form.keys()) | frozenset(query.keys())


def check_single(form: FormData, *names: str) -> None:
    """Refuse repeated fields of which a job has one: the types of the form take the last.

    Raises: RequestValidationError.
    """
    for name in names:
        if (num_sent := len(form.getlist(name))) > 1:
            raise build_refusal(name, f"{num_sent} were sent; a job has one")


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
    source = form.inputs.source_uri
    for uri in (*form.inputs.target_uris, *(() if source is None else (source,))):
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


def build_job(form: JobForm, model: str, key: ServiceKey, film_bytes: int | None = None) -> NewJob:
    """Build the job of a request; `film_bytes` is the length of the target if it is a film."""
    job_options: dict[str, Any] = {"task": form.task, **form.options, "model": model}
    if film_bytes is not None:
        job_options |= form.film_options
    fingerprint = None
    if form.idempotency_key is not None:
        shared = [each for each in (form.source, form.reference, *form.styles) if each is not None]
        digests = [[upload.digest.hexdigest() for upload in uploads] for uploads in (shared, form.targets)]
        content = [job_options, asdict(form.inputs), form.webhook, form.source is None, *digests]
        fingerprint = key.name("request", json.dumps(content, sort_keys=True))
    return NewJob(
        job_options,
        form.source.path if form.source else None,
        [upload.path for upload in form.targets],
        form.inputs,
        form.webhook,
        find_host(form.webhook) if form.webhook else None,
        form.idempotency_key,
        fingerprint,
        form.reference.path if form.reference else None,
        film_bytes,
        [upload.path for upload in form.styles],
    )

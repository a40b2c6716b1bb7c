"""The client: one method for each request of the service, `/openapi.json` describes them."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

from fusionray.client.answers import (
    ApiKey,
    FoundFaces,
    Fused,
    FusedItem,
    Item,
    Job,
    KeptIdentity,
    MadePicture,
    Model,
    NewKey,
    Usage,
)
from fusionray.client.archive import read_archive
from fusionray.client.connection import Connection
from fusionray.client.events import read_events
from fusionray.client.forms import (
    FILE_NAME,
    FuseOptions,
    Parts,
    PictureInput,
    PictureOptions,
    Source,
    open_film,
    write_choice,
    write_fields,
    write_options,
    write_picture,
    write_quoted,
    write_source,
    write_sources,
    write_styles,
)
from fusionray.client.reading import build_answer, read_fused, read_made_picture
from fusionray.errors import JobNotFinished, ServiceRefused, ServiceUnreachable

HANDLE_HEADER = "X-FusionRay-Identity"
PAGE_SIZE = 200
POLL_SECONDS = 0.5
# The service sends at least a comment every 10 s.
SILENCE_SECONDS = 30.0


class FusionClient:
    """A client of one service; threads may share it.

    Every method raises `ServiceRefused` if the service answers with a problem, `ServiceUnreachable` if it does not
    answer, `AnswerInvalid` if something else than this service answers, and `InputMissing` if the file of a picture
    cannot be read.
    """

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 60.0, *, retry: bool = True) -> None:
        """Keep the settings; nothing is sent.

        `url` is the address of the service, such as `http://127.0.0.1:8000`. Without `api_key`, FUSIONRAY_API_KEY is
        the key, if it is set. `timeout` is the time in seconds that a request may take to connect, to send, and to wait
        for its answer, each. With `retry`, a request is sent again, within `timeout` seconds, when a service that is
        full (503), or a rate limit (429), says after which time.

        Raises: ValueError.
        """
        self.connection = Connection(url, api_key, timeout, retry=retry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def fuse(
        self,
        source: Source | list[Source],
        target: PictureInput,
        *,
        reference: PictureInput | None = None,
        reference_similarity: float | None = None,
        **options: Unpack[FuseOptions],
    ) -> Fused:
        """Fuse the face of the source into the target.

        Several sources, all pictures or all stored faces, are for as many numbers in `faces`, in their order.
        With `reference`, a picture, the face of the target is fused that is most similar to its largest one; the cosine
        of their identities must be `reference_similarity` (default 0.3) or more.
        """
        parts = [*write_sources(source), write_picture("target", target)]
        parts += write_choice(reference, reference_similarity, options)
        return read_fused(self.connection.send("POST", "/v1/fuse", files=parts))

    def make_picture(
        self, task: str, pictures: Mapping[str, PictureInput], **options: Unpack[PictureOptions]
    ) -> MadePicture:
        """Make a picture with a model of another task than face fusion; `list_models` names its inputs."""
        parts = [write_picture(name, picture) for name, picture in pictures.items()]
        path = f"/v1/{quote(task, safe='')}"
        return read_made_picture(self.connection.send("POST", path, files=[*parts, *write_options(**options)]))

    def stylize(
        self,
        content: PictureInput,
        styles: PictureInput | list[PictureInput],
        *,
        weights: Sequence[float] | None = None,
        strength: float = 1.0,
        **options: Unpack[PictureOptions],
    ) -> MadePicture:
        """Paint a content in the style of other pictures.

        Several styles are mixed with `weights`, one for each, or equally. `strength`: 0 (the content's own style) to 1.
        """
        parts = [write_picture("content", content), *write_styles(styles, weights, strength), *write_options(**options)]
        return read_made_picture(self.connection.send("POST", "/v1/stylize", files=parts))

    def find_faces(self, target: PictureInput, *, reference: PictureInput | None = None) -> FoundFaces:
        """Find the faces of a picture, and compare them with the largest one of `reference`."""
        parts = [write_picture("target", target)]
        parts += [] if reference is None else [write_picture("reference", reference)]
        return build_answer(FoundFaces, self.connection.ask("POST", "/v1/faces", files=parts))

    def keep_identity(self, source: PictureInput, *, consent: str | None = None) -> KeptIdentity:
        """Store the largest face of a picture, so that it is analysed once and used often."""
        parts = [write_picture("source", source), *write_fields({"consent": consent})]
        return build_answer(KeptIdentity, self.connection.ask("POST", "/v1/identities", files=parts))

    def get_identity(self, kept: KeptIdentity) -> KeptIdentity:
        """Ask when a stored face expires."""
        document = self.connection.ask("GET", "/v1/identities", headers={HANDLE_HEADER: kept.identity})
        found = build_answer(KeptIdentity, {**document, "identity": kept.identity})
        return replace(kept, expires_at=found.expires_at)

    def remove_identity(self, kept: KeptIdentity) -> None:
        """Remove a stored face."""
        self.connection.send("DELETE", "/v1/identities", headers={HANDLE_HEADER: kept.identity})

    def fuse_batch(
        self,
        source: Source | list[Source],
        targets: Sequence[PictureInput],
        *,
        reference: PictureInput | None = None,
        reference_similarity: float | None = None,
        **options: Unpack[FuseOptions],
    ) -> tuple[FusedItem, ...]:
        """Fuse one face into several targets; an item whose picture was not made has a `problem` instead.

        Several sources and `reference` are as in `fuse`.
        """
        parts = [*write_sources(source), *(write_picture("target", target) for target in targets)]
        parts += write_choice(reference, reference_similarity, options)
        answer = self.connection.send("POST", "/v1/batches", files=parts)
        return tuple(read_archive(io.BytesIO(answer.content)))

    def create_job(
        self,
        source: Source | None,
        targets: Sequence[PictureInput] = (),
        *,
        source_uri: str | None = None,
        target_uris: Sequence[str] = (),
        webhook: str | None = None,
        idempotency_key: str | None = None,
        reference: PictureInput | None = None,
        reference_similarity: float | None = None,
        video: str | os.PathLike[str] | None = None,
        leave_out: Sequence[str] = (),
        steady_colours: bool | None = None,
        **options: Unpack[FuseOptions],
    ) -> Job:
        """Start a job: many targets of one face, made one after the other while the client does something else.

        URIs name pictures below a folder that the operator allows; `source` is None if `source_uri` names it. `webhook`
        is the URL that is told when the job has ended. With an `idempotency_key` a repeated call gets the same job.
        `reference` chooses the face of each target, as in `fuse`.

        `video` is the path of a film, instead of targets; it is sent in pieces. `leave_out` names kinds of streams that
        its result cannot hold: `audio`, `subtitle`, `data`, `attachment`, `video`; `steady_colours` averages the
        colours of its fused faces over some frames.
        """
        parts = [] if source is None else [write_source(source)]
        parts += [write_picture("target", target) for target in targets]
        parts += write_fields({"source_uri": source_uri, "target_uri": target_uris, "webhook": webhook})
        parts += write_fields({"leave_out": leave_out, "steady_colours": steady_colours})
        parts += write_choice(reference, reference_similarity, options)
        return start_job(self.connection, "/v1/jobs", parts, key=idempotency_key, role="target", video=video)

    def create_style_job(
        self,
        styles: PictureInput | list[PictureInput],
        contents: Sequence[PictureInput] = (),
        *,
        content_uris: Sequence[str] = (),
        weights: Sequence[float] | None = None,
        strength: float = 1.0,
        webhook: str | None = None,
        idempotency_key: str | None = None,
        video: str | os.PathLike[str] | None = None,
        leave_out: Sequence[str] = (),
        **options: Unpack[PictureOptions],
    ) -> Job:
        """Start a job: many contents, or the film `video`, painted in the same styles.

        `weights` and `strength` are as in `stylize`, all else as in `create_job`.
        """
        parts = [*(write_picture("content", content) for content in contents), *write_styles(styles, weights, strength)]
        parts += write_fields({"content_uri": content_uris, "webhook": webhook, "leave_out": leave_out})
        parts += write_options(**options)
        return start_job(self.connection, "/v1/stylize/jobs", parts, key=idempotency_key, role="content", video=video)

    def get_job(self, job: str) -> Job:
        """Ask for the state of a job."""
        return build_answer(Job, self.connection.ask("GET", job_path(job)))

    def list_jobs(self, status: str | None = None) -> Iterator[Job]:
        """Yield the caller's jobs, or those with a status, the newest first."""
        query = {"limit": PAGE_SIZE} if status is None else {"limit": PAGE_SIZE, "status": status}
        return self.connection.list_pages("/v1/jobs", "jobs", Job, query)

    def cancel_job(self, job: str) -> Job:
        """End a job and keep its finished pictures."""
        return build_answer(Job, self.connection.ask("POST", job_path(job, "/cancel")))

    def remove_job(self, job: str) -> None:
        """End a job and remove it with its pictures."""
        self.connection.send("DELETE", job_path(job))

    def fetch_result(self, job: str, path: str | os.PathLike[str]) -> None:
        """Write what a job that is done has made to a file: the zip of its pictures, for `read_archive`, or its film.

        Raises: OSError; the file is not there then, or as it was before.
        """
        place = Path(path)
        part = place.with_name(f"{place.name}.part")
        with self.connection.open("GET", job_path(job, "/result")) as answer:
            try:
                with part.open("wb") as file:
                    for piece in answer.iter_bytes():
                        file.write(piece)
                part.replace(place)
            finally:
                part.unlink(missing_ok=True)

    def list_items(self, job: str) -> Iterator[Item]:
        """Yield what became of each picture of a job, in their order."""
        return self.connection.list_pages(job_path(job, "/items"), "items", Item, {"limit": PAGE_SIZE})

    def fetch_item(self, job: str, index: int) -> bytes:
        """Fetch one picture of a job, as soon as it is made; the first is 1."""
        return self.connection.send("GET", job_path(job, f"/items/{index}")).content

    def fetch_preview(self, job: str) -> bytes:
        """Fetch a frame of the newest part of a film that is made, a PNG."""
        return self.connection.send("GET", job_path(job, "/preview")).content

    def fetch_report(self, job: str) -> bytes:
        """Fetch the report of a film that is made, a page of HTML."""
        return self.connection.send("GET", job_path(job, "/report")).content

    def fetch_figures(self, job: str) -> dict[str, Any]:
        """Fetch what was counted and timed while a film was made."""
        return self.connection.ask("GET", job_path(job, "/figures"))

    def follow_job(self, job: str) -> Iterator[Job]:
        """Yield the state of a job, each change, and its end, as the service tells them."""
        while True:
            try:
                with self.connection.open("GET", job_path(job, "/events"), timeout=SILENCE_SECONDS) as answer:
                    for state in read_events(answer.iter_lines()):
                        yield state
                        if state.has_ended:
                            return
            except ServiceUnreachable:
                # A replica that stops closes its streams, and another one goes on; if none is there, this raises.
                self.get_job(job)
            time.sleep(POLL_SECONDS)

    def wait_for_job(self, job: str, timeout: float | None = None) -> Job:
        """Wait until a job has ended, however it did; at most `timeout` seconds.

        It asks twice a second: of streams of events, which `follow_job` uses, a service has only so many.

        Raises: JobNotFinished.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (state := self.get_job(job)).has_ended:
            left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise JobNotFinished(
                    f"job {job}: {state.done + state.failed} of {state.total} pictures after {timeout:g} s; wait longer"
                )
            time.sleep(min(left, POLL_SECONDS))
        return state

    def list_models(self) -> tuple[Model, ...]:
        """List the served models, the default first."""
        return tuple(self.connection.list_pages("/v1/models", "models", Model))

    def usage(self) -> Usage:
        """Ask what the key allows, and how much of it is used up."""
        return build_answer(Usage, self.connection.ask("GET", "/v1/usage"))

    def list_keys(self) -> tuple[ApiKey, ...]:
        """List the keys of the service, for its admins."""
        return tuple(self.connection.list_pages("/v1/keys", "keys", ApiKey))

    def add_key(
        self,
        name: str,
        *,
        expires: datetime | None = None,
        requests_per_minute: int | None = None,
        images_per_day: int | None = None,
        models: Sequence[str] | None = None,
    ) -> NewKey:
        """Make a key, for admins. `expires` has a time zone; a limit of None is none, `models` of None are all."""
        document = {
            "name": name,
            "expires": None if expires is None else expires.isoformat(),
            "requests_per_minute": requests_per_minute,
            "images_per_day": images_per_day,
            "models": None if models is None else list(models),
        }
        return build_answer(NewKey, self.connection.ask("POST", "/v1/keys", json=document))

    def remove_key(self, name: str) -> None:
        """Remove a key, for admins."""
        self.connection.send("DELETE", f"/v1/keys/{quote(name, safe='')}")

    def is_ready(self) -> bool:
        """Return whether the service answers and its default model is loaded."""
        try:
            self.connection.send("GET", "/readyz", retry=False)
        except (ServiceRefused, ServiceUnreachable):
            return False
        return True


def job_path(job: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(job, safe='')}{rest}"


def start_job(
    connection: Connection, path: str, parts: Parts, *, key: str | None, role: str, video: str | os.PathLike[str] | None
) -> Job:
    """Send the form of a job, with a film in the field `role` if there is one."""
    headers = {} if key is None else {"Idempotency-Key": write_quoted(key)}
    with ExitStack() as opened:
        if video is not None:
            parts = [*parts, (role, (FILE_NAME, opened.enter_context(open_film(video))))]
        content: dict[str, Any] = {"files": parts, "headers": headers}
        return build_answer(Job, connection.ask("POST", path, **content))

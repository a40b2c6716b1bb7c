"""The part of the client that starts jobs, follows them and fetches what they made."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack
from urllib.parse import quote

from fusionray.client.answers import Item, Job
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
    write_styles,
)
from fusionray.client.reading import build_answer
from fusionray.errors import JobNotFinished, ServiceUnreachable

PAGE_SIZE = 200
POLL_SECONDS = 0.5
# The service sends at least a comment every 10 s.
SILENCE_SECONDS = 30.0


class JobClient:
    """The requests of jobs; `FusionClient` has them, and all others."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

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

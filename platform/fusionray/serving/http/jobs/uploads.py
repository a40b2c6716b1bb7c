"""Forms whose files are written to the disk as they arrive, so that a request of many pictures needs little memory.

Starlette's own parser keeps every file below 1 MiB in memory, and every larger one open.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import shutil
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response

from fusionray.serving.http.middleware.request_limits import BodyLimit
from fusionray.serving.jobs.folder import FULL_ERRORS
from fusionray.storage.atomic_files import FILE_MODE, make_private_folder
from fusionray.video.files.signature import SIGNATURE_BYTES, find_video_suffix

# Most bytes of a field that is no file: a consent token of 4,096 characters.
MAX_FIELD_BYTES = 16_384


@dataclass(frozen=True)
class UploadLimits:
    """Largest numbers of bytes: of a picture, of all pictures of a request, and of a film.

    `film_field`: the field whose files may be films.
    """

    picture: int
    pictures: int
    film: int
    film_field: str


class UploadCounter:
    """Counts the bytes of a request by the kinds of its files."""

    def __init__(self, limits: UploadLimits) -> None:
        self.limits = limits
        self.num_bytes = 0

    def count(self, added: int, size: int, *, is_film: bool) -> None:
        """Count bytes of a file that has now `size`.

        Raises: HTTPException 413.
        """
        if is_film:
            if size > self.limits.film:
                raise refuse("a film", self.limits.film)
            return
        self.num_bytes += added
        if size > self.limits.picture:
            raise refuse("a picture", self.limits.picture)
        if self.num_bytes > self.limits.pictures:
            raise refuse("all pictures together", self.limits.pictures)


class StoredUpload(UploadFile):
    """A file of a form in a file of its own, with its sha256; it is closed after its last byte.

    `is_target`: it may be a film, which its first bytes tell.
    """

    def __init__(self, path: Path, counter: UploadCounter, filename: str, headers: Headers, *, is_target: bool) -> None:
        super().__init__(io.BytesIO(), size=0, filename=filename, headers=headers)
        self.path = path
        self.counter = counter
        self.is_target = is_target
        self.start = b""
        self.is_film = False
        self.digest = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        """Append to the file.

        Raises: HTTPException 413 if it is too long, 507 if the disk is full.
        """
        if self.is_target and len(self.start) < SIGNATURE_BYTES:
            self.start += data[: SIGNATURE_BYTES - len(self.start)]
            self.is_film = find_video_suffix(self.start) is not None
        self.size = (self.size or 0) + len(data)
        self.counter.count(len(data), self.size, is_film=self.is_film)
        await run_in_threadpool(self.append, data)

    async def seek(self, offset: int) -> None:
        """Finish the file: the parser rewinds it after its last byte."""
        del offset
        await run_in_threadpool(self.append, b"")
        await run_in_threadpool(self.file.close)

    async def read(self, size: int = -1) -> bytes:
        """Read the whole file."""
        del size
        return await run_in_threadpool(self.path.read_bytes)

    async def close(self) -> None:
        """Close the file, which stays."""
        self.file.close()

    def append(self, data: bytes) -> None:
        """Write to the file, which is made before its first byte.

        Raises: HTTPException 507; OSError.
        """
        try:
            if isinstance(self.file, io.BytesIO):
                self.file = self.path.open("xb", buffering=0)
                self.path.chmod(FILE_MODE)
            self.digest.update(data)
            self.file.write(data)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            raise HTTPException(
                507, "the disk of the service is full; try again later", {"Retry-After": "60"}
            ) from None


def refuse(what: str, max_bytes: int) -> HTTPException:
    """Build the refusal of files that are too long."""
    refusal = BodyLimit(max_bytes).refuse_size()
    return HTTPException(refusal.status, f"{what}: {refusal.detail}", refusal.headers)


class StoringParser(MultiPartParser):
    """Parse a form and write its files into a folder."""

    def __init__(
        self,
        headers: Headers,
        stream: AsyncGenerator[bytes, None],
        folder: Path,
        upload_limits: UploadLimits,
        **limits: Any,
    ) -> None:
        super().__init__(headers, stream, **limits)
        self.folder = folder
        self.counter = UploadCounter(upload_limits)
        self.stored: list[StoredUpload] = []

    def on_headers_finished(self) -> None:
        """Exchange the file that the parser has opened in memory for one in the folder."""
        super().on_headers_finished()
        opened = self._current_part.file
        if opened is not None:
            self._files_to_close_on_error.pop().close()
            path = self.folder / f"{len(self.stored):04d}"
            is_target = self._current_part.field_name == self.counter.limits.film_field
            upload = StoredUpload(path, self.counter, opened.filename or "", opened.headers, is_target=is_target)
            self.stored.append(upload)
            self._current_part.file = self.stored[-1]

    async def parse(self) -> FormData:
        """Parse the form; the files are closed, also if it fails."""
        try:
            return await super().parse()
        finally:
            for upload in self.stored:
                await upload.close()


class StoringRequest(Request):
    """A request whose form is parsed by a `StoringParser`."""

    folder: Path
    upload_limits: UploadLimits

    async def _get_form(self, **limits: Any) -> FormData:
        if self._form is None:
            if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
                self._form = FormData()
                return self._form
            limits["max_part_size"] = MAX_FIELD_BYTES
            try:
                async with aclosing(self.stream()) as stream:
                    parser = StoringParser(self.headers, stream, self.folder, self.upload_limits, **limits)
                    self._form = await parser.parse()
            except MultiPartException as error:
                raise HTTPException(400, error.message) from None
        return self._form


def build_storing_route(place: Path, limits: UploadLimits) -> type[APIRoute]:
    """Build the kind of route that writes the files of a form below `place`, within `limits`.

    They are removed after the request, except those that it has moved elsewhere.
    """

    class StoringRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            handle = super().get_route_handler()

            async def store(request: Request) -> Response:
                loop = asyncio.get_running_loop()
                storing = StoringRequest(request.scope, request.receive)
                storing.folder = await loop.run_in_executor(None, make_private_folder, place / uuid.uuid4().hex)
                storing.upload_limits = limits
                try:
                    return await handle(storing)
                finally:
                    # Not awaited by way of the loop: a client that leaves cancels what is awaited.
                    loop.run_in_executor(None, shutil.rmtree, storing.folder, True)

            return store

    return StoringRoute

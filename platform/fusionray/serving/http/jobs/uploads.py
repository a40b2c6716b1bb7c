"""Forms whose files are written to the disk as they arrive, so that a request of many pictures needs little memory.

Starlette's own parser keeps every file below 1 MiB in memory, and every larger one open.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import shutil
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response

from fusionray.serving.http.middleware import BodyLimit
from fusionray.storage.atomic_files import FILE_MODE, make_private_folder

FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# Most bytes of a field that is no file: a consent token of 4,096 characters.
MAX_FIELD_BYTES = 16_384


class StoredUpload(UploadFile):
    """A file of a form in a file of its own, with its sha256; it is closed after its last byte."""

    def __init__(self, path: Path, limit: BodyLimit, filename: str, headers: Headers) -> None:
        super().__init__(io.BytesIO(), size=0, filename=filename, headers=headers)
        self.path = path
        self.limit = limit
        self.digest = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        """Append to the file.

        Raises: HTTPException 413 if it is too long, 507 if the disk is full.
        """
        self.size = (self.size or 0) + len(data)
        if self.size > self.limit.max_bytes:
            refusal = self.limit.refuse_size()
            raise HTTPException(refusal.status, f"a picture: {refusal.detail}", refusal.headers)
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


class StoringParser(MultiPartParser):
    """Parse a form and write its files into a folder."""

    def __init__(
        self, headers: Headers, stream: AsyncGenerator[bytes, None], folder: Path, limit: BodyLimit, **limits: Any
    ) -> None:
        super().__init__(headers, stream, **limits)
        self.folder = folder
        self.limit = limit
        self.stored: list[StoredUpload] = []

    def on_headers_finished(self) -> None:
        """Exchange the file that the parser has opened in memory for one in the folder."""
        super().on_headers_finished()
        opened = self._current_part.file
        if opened is not None:
            self._files_to_close_on_error.pop().close()
            path = self.folder / f"{len(self.stored):04d}"
            self.stored.append(StoredUpload(path, self.limit, opened.filename or "", opened.headers))
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
    limit: BodyLimit

    async def _get_form(self, **limits: Any) -> FormData:
        if self._form is None:
            if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
                self._form = FormData()
                return self._form
            limits["max_part_size"] = MAX_FIELD_BYTES
            try:
                async with aclosing(self.stream()) as stream:
                    self._form = await StoringParser(self.headers, stream, self.folder, self.limit, **limits).parse()
            except MultiPartException as error:
                raise HTTPException(400, error.message) from None
        return self._form


def build_storing_route(place: Path, limit: BodyLimit) -> type[APIRoute]:
    """Build the kind of route that writes the files of a form below `place`, each within `limit`.

    They are removed after the request, except those that it has moved elsewhere.
    """

    class StoringRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
            handle = super().get_route_handler()

            async def store(request: Request) -> Response:
                loop = asyncio.get_running_loop()
                storing = StoringRequest(request.scope, request.receive)
                storing.folder = await loop.run_in_executor(None, make_private_folder, place / uuid.uuid4().hex)
                storing.limit = limit
                try:
                    return await handle(storing)
                finally:
                    # Not awaited by way of the loop: a client that leaves cancels what is awaited.
                    loop.run_in_executor(None, shutil.rmtree, storing.folder, True)

            return store

    return StoringRoute

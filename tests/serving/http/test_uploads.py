"""Pictures that clients send stay in memory."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import httpx
import pytest
from fastapi import UploadFile

from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.http.api import build_api
from fusionray.serving.tasks.served_models import ServedModels

# Starlette writes longer files to the disk, unless it is told not to.
MEGABYTE = 2**20


def test_no_picture_of_a_client_is_written_to_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    api = build_api(ServeConfig(models=(ModelConfig(bundle="x"),)), nothing, ServedModels(nothing, {}), None)

    @api.post("/lengths")
    async def lengths(picture: list[UploadFile]) -> list[int]:
        return [len(await each.read()) for each in picture]

    async def send(*sizes: int) -> list[int]:
        files = [("picture", ("a", bytes(size))) for size in sizes]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=api), base_url="http://service") as client:
            found: list[int] = (await client.post("/lengths", files=files)).json()
        return found

    # A file there cannot be opened, so that the request would fail.
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    assert asyncio.run(send(3 * MEGABYTE, MEGABYTE + 1, 7)) == [3 * MEGABYTE, MEGABYTE + 1, 7]

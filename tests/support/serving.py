"""Helpers of the service's tests."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image

from tests.support.pictures import Picture

# Limits of the open service: tight, so that a test is soon beyond them.
MAX_BODY_BYTES = 400_000
MAX_PIXELS = 1_000_000
BODY_SECONDS = 2.0


@dataclass(frozen=True)
class OpenService:
    """A service without keys, with tight limits: where it answers, and the hash of its bundle."""

    port: int
    bundle: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def encode(picture: Picture, picture_format: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, picture_format)
    return buffer.getvalue()

"""Helpers of the service's tests."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tests.support.pictures import Picture

# Limits of the open service: tight, so that a test is soon beyond them.
MAX_BODY_BYTES = 400_000
MAX_JOB_BODY_BYTES = 40_000_000
MAX_PIXELS = 1_000_000
MAX_VIDEO_BYTES, MAX_VIDEO_PIXELS, MAX_VIDEO_FRAMES = 4_000_000, 200_000, 400
# Films of a few seconds have several segments.
SEGMENT_SECONDS = 0.3
BODY_SECONDS = 2.0
# The settings must name the port before the service starts; below the ephemeral ones, so that no client has it.
WEBHOOK_HOST = "127.0.0.1:18931"
WEBHOOK_SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@dataclass(frozen=True)
class OpenService:
    """A service without keys, with tight limits: where it answers, the hash of its bundle, and its folder.

    Jobs may read pictures by URI from `in` in the folder, and have webhooks to `WEBHOOK_HOST`.
    """

    port: int
    bundle: str
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def encode(picture: Picture, picture_format: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, picture_format)
    return buffer.getvalue()

"""What tests of the service share."""

from __future__ import annotations

import io
import socket

from PIL import Image

from tests.support.pictures import Picture


def encode(picture: Picture, picture_format: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, picture_format)
    return buffer.getvalue()


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port

"""Edit the structure of PNG and JPEG files, to tamper with them."""

from __future__ import annotations

import struct

Chunk = tuple[bytes, bytes]
"""Name, and all bytes of the chunk."""

MANIFEST_CHUNK = b"caBX"
# JPEG keeps the manifest in segments with this marker.
MANIFEST_MARKER = 0xEB


def split_png(data: bytes) -> list[Chunk]:
    chunks: list[Chunk] = []
    position = 8
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        chunks.append((data[position + 4 : position + 8], data[position : position + 12 + length]))
        position += 12 + length
    return chunks


def join_png(chunks: list[Chunk]) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + b"".join(raw for _, raw in chunks)


def strip_png(data: bytes) -> bytes:
    """Remove the manifest from a PNG."""
    return join_png([chunk for chunk in split_png(data) if chunk[0] != MANIFEST_CHUNK])


def graft_png(data: bytes, donor: bytes) -> bytes:
    """Replace the manifest of a PNG by that of another one."""
    (manifest,) = [chunk for chunk in split_png(donor) if chunk[0] == MANIFEST_CHUNK]
    return join_png([manifest if chunk[0] == MANIFEST_CHUNK else chunk for chunk in split_png(data)])


def strip_jpeg(data: bytes) -> bytes:
    """Remove the manifest from a JPEG."""
    kept, position = data[:2], 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        if data[position + 1] != MANIFEST_MARKER:
            kept += data[position:end]
        position = end
    return kept + data[position:]


def flip(data: bytes, position: int) -> bytes:
    """Change the lowest bit of a byte."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]

"""Budgets of a replica's memory: for uploads, and for decoded pictures, of which 60 kB can take hundreds of MB."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fusionray.errors import ImageRejected
from fusionray.faces.image_files.headers.image_header import ImageHeader, ImageKind, read_header
from fusionray.hardware.memory import free_bytes
from fusionray.serving.config_sections.limits import LimitConfig

# Bytes per pixel at the peak, from the decoder to the encoded answer: the picture, the warped faces that are pasted
# into it, and the encoder's copies. Other formats than JPEG may have an alpha channel and 16 bits, of which decoders
# make copies; plain Netpbm pictures are read as numbers of 32 bits; a TIFF may be as long as its pixels, and is copied.
BYTES_PER_PIXEL: dict[ImageKind, int] = {
    "jpeg": 12, "png": 20, "webp": 20, "bmp": 20, "avif": 24, "heic": 24, "netpbm": 24, "tiff": 28
}  # fmt: skip
# Memory for decoded pictures, unless the settings say otherwise.
MOST_DECODED_BYTES, DECODED_SHARE = 2**30, 0.25


def choose_decoded_bytes(settings: LimitConfig) -> int:
    """Return the memory for decoded pictures: as set, or a share of what is free now."""
    return settings.decoded_bytes or max(2**20, min(MOST_DECODED_BYTES, int(free_bytes() * DECODED_SHARE)))


class MemoryBudget:
    """Let work begin only while its memory fits into `total` bytes; the rest waits, first come, first served.

    Work that needs more than `total` runs when nothing else does. All calls come from one event loop.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def reserve(self, pictures: Iterable[bytes]) -> AbstractAsyncContextManager[None]:
        """Hold the memory for encoded pictures for the length of an `async with` block.

        They are decoded one after the other, and only the last is kept, so the largest of them counts.
        """
        return self.hold(max(map(estimate_bytes, pictures), default=0))

    @asynccontextmanager
    async def hold(self, num_bytes: int) -> AsyncIterator[None]:
        """Hold so many bytes for the length of an `async with` block."""
        amount = min(self.total, num_bytes)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((amount, turn))
        self.admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self.free += amount
            else:
                self.leave(turn)
            self.admit()

    def admit(self) -> None:
        """Let those begin who are first and whose memory is free; forget those who have given up."""
        while self.waiting:
            amount, turn = self.waiting[0]
            # A cancelled task takes its place out of the line only when it runs again, and others may run before it.
            if not turn.cancelled():
                if amount > self.free:
                    return
                self.free -= amount
                turn.set_result(None)
            self.waiting.popleft()

    def leave(self, turn: asyncio.Future[None]) -> None:
        """Take one who has given up out of the line, unless that is done already."""
        self.waiting = deque(entry for entry in self.waiting if entry[1] is not turn)


def estimate_bytes(picture: bytes) -> int:
    """Estimate the memory that an encoded picture takes, by its header; 0 if it will be refused by its header."""
    header = look_at(picture)
    return 0 if header is None else header.width * header.height * BYTES_PER_PIXEL[header.kind]


def count_pixels(picture: bytes) -> int:
    """Count the pixels of an encoded picture, by its header; 0 if it will be refused by its header."""
    header = look_at(picture)
    return 0 if header is None else header.width * header.height


def look_at(picture: bytes) -> ImageHeader | None:
    """Read the header of an encoded picture; None if it will be refused."""
    try:
        return read_header(picture)
    except ImageRejected:
        return None

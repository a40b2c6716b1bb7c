"""Write a picture of any size by bands of rows."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fusionray.bands.png_stream import stream_png
from fusionray.bands.vips import first_line, load_vips
from fusionray.errors import PictureNotWritten

BandFormat = Literal["png", "jpeg", "tiff"]
# A JPEG states its sides in 16 bits, of which libjpeg takes a little less.
MAX_JPEG_SIDE = 65_500
# Beyond 4 GiB a TIFF needs the offsets of BigTIFF, which not every program reads; noise grows a little by deflate.
MAX_TIFF_BYTES = 4_000_000_000
# Rows that are handed to the encoder at once: it holds several such strips.
STRIP_ROWS = 16
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class BandOutput:
    """How a picture is encoded: `quality` of JPEG (1 to 100), and the XMP packet and ICC profile in the file."""

    format: BandFormat
    quality: int = 92
    xmp: bytes | None = None
    icc_profile: bytes | None = None


class BandWriter:
    """A picture file that is encoded while its rows come, by a thread of its own. A context manager.

    PNG is compressed at level 1, TIFF by deflate (BigTIFF if it may need that); JPEG has full resolution of colours. If
    the block ends with an exception, what is written so far stays in the file, which the caller removes.
    """

    def __init__(self, path: Path, width: int, height: int, output: BandOutput) -> None:
        """Begin a picture of `height` rows.

        Raises: PictureNotWritten if no file of this format can hold it.
        """
        if output.format == "jpeg" and max(width, height) > MAX_JPEG_SIDE:
            raise PictureNotWritten(
                f"a JPEG has at most {MAX_JPEG_SIDE} pixels a side, not {width} x {height}; write PNG or TIFF"
            )
        self.path, self.width, self.height, self.output = path, width, height, output
        self.written = 0
        # None: there will be no more rows, although some lack.
        self.strips: queue.Queue[NDArray[np.uint8] | None] = queue.Queue(maxsize=1)
        self.fault: str | None = None
        self.thread = threading.Thread(target=self.encode, name=f"encode {path.name}")

    def __enter__(self) -> BandWriter:
        self.thread.start()
        return self

    def write(self, rows: NDArray[np.uint8]) -> None:
        """Add rows, uint8 RGB [H,W,3], below those written so far; they may be changed afterwards.

        Raises: PictureNotWritten if the file cannot be written.
        """
        if self.written + len(rows) > self.height or rows.shape[1:] != (self.width, 3):
            raise ValueError(f"rows {rows.shape} do not fit below row {self.written} of {self.width} x {self.height}")
        for start in range(0, len(rows), STRIP_ROWS):
            self.put(rows[start : start + STRIP_ROWS].copy())
        self.written += len(rows)

    def put(self, strip: NDArray[np.uint8] | None) -> None:
        while self.thread.is_alive():
            try:
                self.strips.put(strip, timeout=POLL_SECONDS)
            except queue.Full:
                continue
            return
        self.check()

    def check(self) -> None:
        if self.fault is not None:
            raise PictureNotWritten(f"{self.path} cannot be written: {self.fault}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until the file is complete; raises PictureNotWritten if it could not be written."""
        lacks = self.height - self.written
        if lacks:
            with contextlib.suppress(PictureNotWritten):
                self.put(None)
        self.thread.join()
        if kind is None:
            if lacks:
                raise ValueError(f"{self.written} of {self.height} rows were written")
            self.check()

    def encode(self) -> None:
        try:
            if self.output.format == "png":
                self.encode_png()
            else:
                self.encode_by_vips()
        except OSError as error:
            self.fault = error.strerror or str(error)

    def encode_png(self) -> None:
        output, size = self.output, (self.width, self.height)
        with self.path.open("wb") as file:
            for data in stream_png(*size, self.take_strips(), xmp=output.xmp, icc_profile=output.icc_profile):
                file.write(data)

    def encode_by_vips(self) -> None:
        """Let libvips encode the picture, which it takes as a PNG without compression."""
        vips = load_vips()
        source = vips.SourceCustom()
        source.on_read(PieceReader(stream_png(self.width, self.height, self.take_strips(), level=0)).read)
        try:
            image = vips.Image.new_from_source(source, "", access="sequential", fail_on="error").copy()
            for name, data in (("xmp-data", self.output.xmp), ("icc-profile-data", self.output.icc_profile)):
                if data is not None:
                    image.set_type(vips.GValue.blob_type, name, data)
            self.save(image)
        except vips.Error as error:
            self.fault = first_line(error)

    def save(self, image: Any) -> None:
        """Encode a picture of libvips into the file."""
        if self.output.format == "jpeg":
            image.jpegsave(str(self.path), Q=self.output.quality, subsample_mode="off")
        else:
            large = 3 * self.width * self.height > MAX_TIFF_BYTES
            image.tiffsave(str(self.path), compression="deflate", predictor="horizontal", bigtiff=large)

    def take_strips(self) -> Iterator[NDArray[np.uint8]]:
        """Yield strips as they come; the end of the stream comes too early if there will be no more."""
        taken = 0
        while taken < self.height:
            strip = self.strips.get()
            if strip is None:
                return
            taken += len(strip)
            yield strip


class PieceReader:
    """Bytes that come in pieces, read in pieces of other lengths."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces
        self.left = memoryview(b"")

    def read(self, length: int) -> bytes:
        """Return at most `length` bytes; none at the end."""
        if not self.left:
            self.left = memoryview(next(self.pieces, b""))
        piece, self.left = self.left[:length], self.left[length:]
        return bytes(piece)

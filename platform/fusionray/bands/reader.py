"""Read a picture of any size by bands of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.bands.vips import first_line, load_vips
from fusionray.errors import ImageRejected

# Rows that libvips is asked for at once; with more, it holds more lines in memory, and is no faster.
FETCHED_ROWS = 16
# Rows of pixels are blocks of memory of this size and more; `return_freed_memory` lets them go when they are freed.
ROWS_BYTES = 128 * 2**10
# A progressive JPEG or an interlaced PNG has its last row only at the end of the file: decoders hold it whole.
MAX_WHOLE_PIXELS = 50_000_000


@dataclass(frozen=True)
class Band:
    """Rows `start` to `stop` of a picture, and the rows around them: `pixels` uint8 RGB [H,W,3] begin at row `top`."""

    start: int
    stop: int
    top: int
    pixels: NDArray[np.uint8]


class BandReader:
    """A picture file (PNG, JPEG, TIFF, WebP) that is decoded as it is read, as often as wanted.

    Grey, palette, CMYK and 16-bit pictures become 8-bit RGB; transparent pixels are blended with white; the picture is
    upright by its orientation, for which one that is turned is first decoded into a temporary file; of several pages,
    the first is read.
    """

    def __init__(self, path: Path, max_pixels: int | None = None) -> None:
        """Read the header.

        Raises: ImageRejected with the reason "not_an_image" or "too_large".
        """
        self.path = path
        self.vips = load_vips()
        with self.rejecting("not_an_image"):
            image = self.vips.Image.new_from_file(str(path), access="sequential")
            fields = {name: image.get(name) for name in image.get_fields()}
        self.turned = fields.get("orientation", 1) != 1
        swapped = fields.get("orientation", 1) in (5, 6, 7, 8)
        self.width, self.height = (image.height, image.width) if swapped else (image.width, image.height)
        profile = fields.get("icc-profile-data")
        # A profile of other pixels than RGB describes none that are read here.
        self.icc_profile: bytes | None = profile if profile is not None and profile[16:20] == b"RGB " else None
        pixels = self.width * self.height
        if max_pixels is not None and pixels > max_pixels:
            raise ImageRejected(
                "too_large", f"{path} has {self.width} x {self.height} pixels; {max_pixels} pixels are the limit"
            )
        whole = fields.get("interlaced", 0) or fields.get("jpeg-multiscan", 0)
        if whole and pixels > MAX_WHOLE_PIXELS:
            raise ImageRejected(
                "too_large",
                f"{path} is interlaced or progressive, so it can only be decoded whole, and has {self.width} x "
                f"{self.height} pixels, over the limit of {MAX_WHOLE_PIXELS} for such files; save it without that",
            )

    def bands(self, height: int, halo: int = 0) -> Iterator[Band]:
        """Decode the picture from its top: bands of `height` rows (the last may have fewer), with rows around them.

        `halo`: rows above and below each band, fewer at the edges of the picture. The pixels of a band are valid until
        the next one is asked for.

        Raises: ImageRejected with the reason "damaged".
        """
        memory = np.empty((min(height + 2 * halo, self.height), self.width, 3), np.uint8)
        rows = self.rows()
        top = bottom = 0
        left = np.empty((0, self.width, 3), np.uint8)
        for start in range(0, self.height, height):
            stop = min(start + height, self.height)
            new_top, new_bottom = max(start - halo, 0), min(stop + halo, self.height)
            kept = bottom - new_top
            # Rows overlap with their former place: numpy copies them rightly.
            memory[:kept] = memory[new_top - top : bottom - top]
            top, bottom = new_top, new_top + kept
            while bottom < new_bottom:
                if not len(left):
                    left = next(rows)
                taken = min(len(left), new_bottom - bottom)
                memory[bottom - top : bottom - top + taken] = left[:taken]
                left, bottom = left[taken:], bottom + taken
            yield Band(start, stop, top, memory[: bottom - top])

    def rows(self) -> Iterator[NDArray[np.uint8]]:
        """Decode the picture from its top, some rows at a time, uint8 RGB [H,W,3].

        Raises: ImageRejected with the reason "damaged".
        """
        with self.rejecting("damaged"):
            image = self.open()
            region = self.vips.Region.new(image)
            for top in range(0, self.height, FETCHED_ROWS):
                count = min(FETCHED_ROWS, self.height - top)
                data = region.fetch(0, top, self.width, count)
                yield np.frombuffer(data, np.uint8).reshape(count, self.width, 3)

    def open(self) -> Any:
        """Open the file as a pipeline that ends in 8-bit RGB rows."""
        access = "random" if self.turned else "sequential"
        image = self.vips.Image.new_from_file(str(self.path), access=access, fail_on="error")
        if self.turned:
            image = image.autorot()
        if image.interpretation == "cmyk":
            image = image.icc_transform("srgb", embedded=True, pcs="xyz")
        else:
            image = image.colourspace("srgb")
        if image.hasalpha():
            image = image.flatten(background=[255, 255, 255])
        return image[:3].cast("uchar")

    @contextlib.contextmanager
    def rejecting(self, reason: str) -> Iterator[None]:
        """Turn errors of libvips into a rejection of the picture."""
        try:
            yield
        except self.vips.Error as error:
            raise ImageRejected(reason, f"{self.path} cannot be decoded: {first_line(error)}") from None

"""Read a video: what it is, and its frames with the times at which they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import av
import av.error
from av.video.reformatter import Colorspace

from fusionray.errors import InputMissing, VideoRejected
from fusionray.video.colour import ColourSpace, MatrixName, Transfer
from fusionray.video.planes import PLANAR

# 8K, with room for upright phones; a header may state any size.
MAX_PIXELS = 8192 * 8192
# Packets in a row that cannot be decoded: a video that is damaged for longer is not worth going on.
MOST_DAMAGED = 250
# FFmpeg's numbers of matrices, transfers and ranges (libavutil/pixfmt.h).
MATRICES: dict[int, MatrixName] = {1: "bt709", 4: "bt601", 5: "bt601", 6: "bt601", 9: "bt2020", 10: "bt2020"}
TRANSFERS: dict[int, Transfer] = {16: "pq", 18: "hlg"}
FULL_RANGE = 2
# Players take a video without tags for BT.709 from this height on.
HD_LINES = 720
# What frames of other formats are converted to.
CONVERTED_FORMAT = "yuv444p"


@dataclass(frozen=True)
class VideoDescription:
    """A video stream: `width` and `height` as stored, before `rotation`, in degrees counter-clockwise.

    `rate`: frames a second on average, None if unknown; `num_frames` by the header, 0 if unknown; `time_base`: seconds
    of one unit of time; `sample_aspect`: width of a pixel over its height; `colour` numbers are FFmpeg's: primaries,
    transfer, matrix, range.
    """

    width: int
    height: int
    pixel_format: str
    time_base: Fraction
    rate: Fraction | None
    num_frames: int
    rotation: int
    sample_aspect: Fraction | None
    colour: tuple[int, int, int, int]

    @property
    def space(self) -> ColourSpace:
        """Return what the planes of its frames mean."""
        _, transfer, matrix, color_range = self.colour
        default: MatrixName = "bt709" if min(self.width, self.height) >= HD_LINES else "bt601"
        converted = self.pixel_format not in PLANAR
        return ColourSpace(
            "bt709" if converted else MATRICES.get(matrix, default),
            not converted and (color_range == FULL_RANGE or self.pixel_format.startswith("yuvj")),
            TRANSFERS.get(transfer, "sdr"),
            8 if converted else PLANAR[self.pixel_format],
        )

    @property
    def frame_format(self) -> str:
        """Return the pixel format in which frames are given."""
        return self.pixel_format if self.pixel_format in PLANAR else CONVERTED_FORMAT


class VideoReader:
    """An open video; a context manager. Frames are read once, from the start.

    `num_damaged` counts the packets that could not be decoded so far.

    Raises: InputMissing if there is no such file; VideoRejected if it is no video, or too large.
    """

    def __init__(self, path: str | Path, *, max_pixels: int = MAX_PIXELS) -> None:
        self.path = Path(path)
        self.num_damaged = 0
        if not self.path.is_file():
            raise InputMissing(f"{path}: no such video file; check the path")
        try:
            self.container = av.open(str(self.path))
        except av.error.FFmpegError as error:
            raise VideoRejected(f"{path}: is not a video that can be read ({error.strerror}); convert it") from None
        try:
            self.stream = self.choose_stream(max_pixels)
            self.decoded = self.decode()
            first = next(self.decoded, None)
            if first is None:
                raise VideoRejected(f"{path}: has no frame that can be decoded; the file is empty or damaged")
            self.description = self.describe(first)
            self.decoded = chain([first], self.decoded)
        except BaseException:
            self.container.close()
            raise

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.container.close()

    def choose_stream(self, max_pixels: int) -> Any:
        """Choose the first video stream that is no cover picture.

        Raises: VideoRejected.
        """
        pictures = av.stream.Disposition.attached_pic
        streams = [stream for stream in self.container.streams.video if not stream.disposition & pictures]
        if not streams:
            raise VideoRejected(f"{self.path}: has no video stream; choose a file that shows something")
        width, height = streams[0].codec_context.width, streams[0].codec_context.height
        if not width * height:
            raise VideoRejected(
                f"{self.path}: FFmpeg cannot decode it (it finds no size); convert it, to .mp4 for example"
            )
        if width * height > max_pixels:
            raise VideoRejected(
                f"{self.path}: has frames of {width} x {height} pixels; {max_pixels} pixels are the limit"
            )
        streams[0].thread_type = "AUTO"
        return streams[0]

    def describe(self, first: av.VideoFrame) -> VideoDescription:
        """Describe the stream: by its first frame, which knows more than the header does."""
        context = self.stream.codec_context
        # A frame without tags leaves what the stream says.
        colour = (
            int(context.color_primaries), int(context.color_trc), int(context.colorspace), int(context.color_range)
        )  # fmt: skip
        return VideoDescription(
            first.width,
            first.height,
            first.format.name,
            self.stream.time_base,
            self.stream.average_rate or None,
            self.stream.frames,
            first.rotation % 360,
            self.stream.sample_aspect_ratio or None,
            colour,
        )

    def frames(self) -> Iterator[av.VideoFrame]:
        """Yield the frames in the order in which they are shown, each writable, in `description.frame_format`.

        Interlaced frames are given as they are stored, both fields in one. A packet that cannot be decoded is counted
        and left out. Raises: VideoRejected if too many in a row cannot, or the size of the frames changes.
        """
        for frame in self.decoded:
            if (frame.width, frame.height) != (self.description.width, self.description.height):
                raise VideoRejected(
                    f"{self.path}: its frames change to {frame.width} x {frame.height} pixels; "
                    "cut it there, and use the parts"
                )
            yield self.make_editable(frame)

    def make_editable(self, frame: av.VideoFrame) -> av.VideoFrame:
        """Return the frame with planes of its own, which may be changed: the decoder needs its for later frames."""
        if frame.format.name in PLANAR:
            frame.make_writable()
            return frame
        return frame.reformat(format=CONVERTED_FORMAT, dst_colorspace=Colorspace.ITU709)

    def decode(self) -> Iterator[av.VideoFrame]:
        """Yield the frames that can be decoded."""
        damaged = 0
        for packet in self.container.demux(self.stream):
            try:
                frames = packet.decode()
            except av.error.FFmpegError as error:
                damaged += 1
                self.num_damaged += 1
                if damaged > MOST_DAMAGED:
                    raise VideoRejected(
                        f"{self.path}: {damaged} packets in a row cannot be decoded ({error.strerror}); repair it first"
                    ) from None
                continue
            damaged = 0 if frames else damaged
            yield from frames

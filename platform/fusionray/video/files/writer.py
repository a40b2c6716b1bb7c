"""Write an edited video: its frames encoded at their own times, everything else copied from the source."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from pathlib import Path
from types import TracebackType

from av import VideoFrame
from av.codec.context import Flags
from av.container import OutputContainer
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from av.video.stream import VideoStream

from fusionray.errors import VideoNotWritten
from fusionray.video.files.description import VideoDescription
from fusionray.video.files.encoders import EncoderSettings, build_options, choose_colour, choose_pixel_format
from fusionray.video.files.output_file import MOV_FORMATS, OutputFile
from fusionray.video.files.reader import frame_time
from fusionray.video.frames.colour import RANGES
from fusionray.video.frames.pixel_layout import read_layout

# For rate control only, where a video does not state its own; times are never derived from it.
_RATE_GUESSED = Fraction(25)
# From so many frames on, x265 knows by how much it reorders them.
REORDERED_FRAMES = 3
_FIELD_ORDERS = {"progressive": 1, "tt": 2, "bb": 3, "tb": 4, "bt": 5}


class VideoWriter:
    """Writes a video like `description` to `path`; the suffix chooses the container. Use it in a `with` block.

    Frames keep their presentation times, as exactly as the container can hold them (MKV: milliseconds). All else comes
    from `source`, see `OutputFile`; without it, the video is alone. Display matrix, sample aspect, colour tags and
    field order are kept. HDR mastering and content light are kept by libx264, libx265 and libsvtav1, in the coded
    video, and not in boxes of the container, which PyAV cannot write; nor can it tell the chroma location (`options`:
    `chroma_sample_location`), stereo and spherical video.

    The file appears under its name when the block ends without an error.

    Raises:
        VideoNotWritten: no such encoder or container here, or it cannot keep the video.
        InputMissing, VideoRejected: `source` cannot be read.
    """

    def __init__(
        self,
        path: Path,
        description: VideoDescription,
        source: Path | None = None,
        settings: EncoderSettings | None = None,
        *,
        leave_out: Collection[str] = (),
    ) -> None:
        self.path = path
        self.description = description
        self.settings = settings or EncoderSettings()
        self.pixel_format = choose_pixel_format(self.settings.encoder, description)
        self.num_frames = 0
        self._last_time: Fraction | None = None
        self._reformatter = VideoReformatter()
        self._file = OutputFile(path, description, source, encoder=self.settings.encoder, leave_out=leave_out)
        try:
            self._stream = self._file.start(self._add_video)
        except BaseException:
            self._file.discard()
            raise

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._file.discard()

    def write(self, frame: VideoFrame) -> None:
        """Encode the next frame, which is shown later than the one before. Do not change it afterwards.

        Raises:
            VideoNotWritten: encoding or writing failed.
            ValueError: its time, size or pixel format does not follow the description.
        """
        self._check_frame(frame)
        with self._file.explain("cannot write"):
            prepared = self._convert(frame)
            # The encoder chooses its own key frames: the old ones would bind it.
            prepared.pict_type = 0
            self._file.mux(self._stream.encode(prepared))
        self.num_frames += 1

    def discard(self) -> None:
        """Remove what was written; `path` is as it was. Does nothing after the block."""
        self._file.discard()

    def _finish(self) -> None:
        if not self.num_frames:
            raise VideoNotWritten(f"{self.path}: no frame was written, so there is no video to keep")
        with self._file.explain("cannot finish"):
            packets = self._stream.encode(None)
            if self.settings.encoder == "libx265" and self.num_frames < REORDERED_FRAMES:
                # All of them come now, in their order; x265 takes their decoding times from memory that it never set.
                for packet in packets:
                    packet.dts = packet.pts
            self._file.mux(packets)
        self._file.close()

    def _add_video(self, output: OutputContainer) -> VideoStream:
        described, encoder = self.description, self.settings.encoder
        options = build_options(self.settings, described, self.pixel_format)
        rate = described.average_rate or _RATE_GUESSED
        try:
            stream = output.add_stream(encoder, rate, options, time_base=described.time_base)
        except ValueError as error:
            raise VideoNotWritten(
                f"{self.path}: {output.format.name} cannot hold video of {encoder}; use .mp4, .mov or .mkv, or "
                "another encoder"
            ) from error
        assert isinstance(stream, VideoStream)
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = described.width, described.height, self.pixel_format
        context.sample_aspect_ratio = described.sample_aspect
        colour = choose_colour(described, self.pixel_format)
        context.color_primaries, context.color_trc, context.colorspace, context.color_range = colour.numbers
        # The last frame keeps its duration.
        context.flags |= Flags.frame_duration
        if described.interlaced:
            context.flags |= Flags.interlaced_dct | Flags.interlaced_me
            context.field_order = _FIELD_ORDERS.get(described.field_order, 2)
        if encoder in {"libx265", "hevc_nvenc"} and self.path.suffix.lower() in MOV_FORMATS:
            # Apple's players show HEVC under this tag only.
            context.codec_tag = "hvc1"
        if described.display_matrix is not None:
            stream.set_display_matrix(described.display_matrix)
        return stream

    def _check_frame(self, frame: VideoFrame) -> None:
        described = self.description
        if not described.is_of(frame):
            raise ValueError(
                f"frame: {frame.width} x {frame.height} {frame.format.name} differs from the video's "
                f"{described.width} x {described.height} {described.pixel_format}"
            )
        time = frame_time(frame)
        if self._last_time is not None and time <= self._last_time:
            raise ValueError(f"frame: its time {time} s is not after {self._last_time} s, the one before")
        self._last_time = time

    def _convert(self, frame: VideoFrame) -> VideoFrame:
        """Convert a frame to the encoder's pixel format; its own range and matrix stay, RGB becomes limited BT.709."""
        if self.pixel_format == frame.format.name:
            return frame
        if read_layout(frame.format.name).is_rgb:
            return self._reformatter.reformat(
                frame, format=self.pixel_format, dst_colorspace=Colorspace.ITU709, dst_color_range=ColorRange.MPEG
            )
        colour = choose_colour(self.description, self.pixel_format)
        full = next(number for number, name in RANGES.items() if name == colour.range)
        return self._reformatter.reformat(frame, format=self.pixel_format, src_color_range=full, dst_color_range=full)

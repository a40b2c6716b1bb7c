"""Write the edited frames of a video; everything else of it is copied as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.error

from fusionray.errors import VideoRejected
from fusionray.video.reader import VideoReader

# Names of metadata that the container writes itself.
OWN_METADATA = frozenset({"encoder", "major_brand", "minor_version", "compatible_brands"})
# Kinds of streams that are copied.
COPIED = frozenset({"audio", "subtitle", "attachment"})
# What streams and containers without an average rate are told; the times of frames say the truth.
FALLBACK_RATE = Fraction(25)
# Quality settings of encoders that look like their source at a moderate size.
QUALITIES: dict[str, dict[str, str]] = {
    "libx264": {"crf": "17", "preset": "medium"},
    "libx265": {"crf": "19", "preset": "medium", "x265-params": "log-level=error"},
    "libsvtav1": {"crf": "24", "preset": "6"},
    "prores_ks": {"profile": "hq"},
    "ffv1": {"level": "3"},
    "h264_nvenc": {"cq": "19", "rc": "vbr"},
    "hevc_nvenc": {"cq": "21", "rc": "vbr"},
}


@dataclass
class CopiedStreams:
    """The streams of a video beside its pictures, and their packets in the order in which they are stored."""

    streams: dict[int, Any]
    packets: Iterator[av.Packet[Any]]
    waiting: list[av.Packet[Any]] = field(default_factory=list)

    def until(self, seconds: float) -> Iterator[av.Packet[Any]]:
        """Yield the packets that come before a time, each for its stream in the copy."""
        while True:
            packet = self.waiting.pop() if self.waiting else next(self.packets, None)
            if packet is None:
                return
            if packet.dts is not None and float(packet.dts * packet.time_base) > seconds:
                self.waiting.append(packet)
                return
            packet.stream = self.streams[packet.stream.index]
            yield packet


class VideoWriter:
    """Writes a video like the one that a reader reads, with its frames encoded anew; a context manager.

    The times of frames are kept, whatever they are; rotation, shape of the pixels, tags of colour, sound, subtitles,
    chapters and metadata are those of the source. `encoder`: a name of FFmpeg; `options`: its settings, by default for
    a quality like that of the source. The file has its name only when it is complete; after an error there is none.

    Raises: VideoRejected if the encoder is not there, or the container of that name cannot hold a stream.
    """

    def __init__(
        self,
        path: str | Path,
        source: VideoReader,
        *,
        encoder: str = "libx264",
        options: dict[str, str] | None = None,
    ) -> None:
        self.path = Path(path)
        self.source = source
        self.encoder = encoder
        self.unfinished = self.path.with_name(f".{self.path.stem}.{os.getpid()}{self.path.suffix}")
        self.resources = contextlib.ExitStack()
        self.resources.callback(self.unfinished.unlink, missing_ok=True)
        with contextlib.ExitStack() as opening:
            opening.push(self.resources)
            with self.explained():
                self.container = av.open(str(self.unfinished), "w")
                self.resources.callback(self.container.close)
                self.video = self.add_video(QUALITIES.get(encoder, {}) if options is None else options)
                self.copied = self.add_others()
                self.container.start_encoding()
            opening.pop_all()

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.resources, self.explained():
            if kind is None:
                self.mux_pictures(self.video.encode())
                self.container.mux(list(self.copied.until(float("inf"))))
                self.container.close()
                self.unfinished.replace(self.path)

    def write(self, frame: av.VideoFrame) -> None:
        """Encode the next frame, with its own time.

        Raises: VideoRejected.
        """
        # The decoder's choice of key frames is not the encoder's.
        frame.pict_type = av.video.frame.PictureType.NONE
        with self.explained():
            self.mux_pictures(self.video.encode(frame))

    def mux_pictures(self, packets: list[av.Packet[Any]]) -> None:
        """Write packets of pictures, each after what else comes before it."""
        for packet in packets:
            if packet.dts is not None:
                self.container.mux(list(self.copied.until(float(packet.dts * packet.time_base))))
            self.container.mux(packet)

    def add_video(self, options: dict[str, str]) -> Any:
        """Add the stream of pictures."""
        description = self.source.description
        try:
            known = av.codec.Codec(self.encoder, "w")
        except av.codec.codec.UnknownCodecError:
            raise VideoRejected(f"{self.encoder}: FFmpeg has no such encoder here; use libx264") from None
        formats = [each.name for each in known.video_formats or ()]
        if formats and description.frame_format not in formats:
            raise VideoRejected(
                f"{self.encoder}: cannot encode {description.frame_format}; use one that can, such as libx264 or ffv1"
            )
        video: Any = self.container.add_stream(self.encoder, rate=description.rate or FALLBACK_RATE, options=options)
        context = video.codec_context
        context.width, context.height = description.width, description.height
        context.pix_fmt = description.frame_format
        context.time_base = description.time_base
        primaries, transfer, matrix, color_range = description.colour
        context.color_primaries, context.color_trc = primaries, transfer
        context.colorspace, context.color_range = matrix, color_range
        if description.sample_aspect:
            context.sample_aspect_ratio = description.sample_aspect
        if description.rotation:
            video.set_display_rotation(description.rotation)
        copy_metadata(self.source.stream, video)
        return video

    def add_others(self) -> CopiedStreams:
        """Add the streams that are copied, with chapters and metadata of the file."""
        container = self.resources.enter_context(av.open(str(self.source.path)))
        copied: dict[int, Any] = {}
        for stream in container.streams:
            # Data, such as the track in which MP4 keeps chapters, mean nothing beside other pictures.
            if stream.index == self.source.stream.index or stream.type not in COPIED:
                continue
            try:
                copied[stream.index] = self.container.add_stream_from_template(stream)
            except ValueError as error:
                raise VideoRejected(
                    f"{self.path}: a {self.path.suffix} file cannot hold the {stream.type} of {self.source.path} "
                    f"({error}); choose the container of the source, or .mkv"
                ) from None
            copy_metadata(stream, copied[stream.index])
        self.container.metadata.update(
            {name: value for name, value in container.metadata.items() if name not in OWN_METADATA}
        )
        self.container.set_chapters(container.chapters())
        chosen = [container.streams[index] for index in copied]
        packets = (packet for packet in container.demux(chosen) if packet.dts is not None) if chosen else iter(())
        return CopiedStreams(copied, packets)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an error of FFmpeg into one line."""
        try:
            yield
        except (av.error.FFmpegError, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise VideoRejected(f"{self.path}: cannot be written with {self.encoder} ({reason})") from None


def copy_metadata(stream: Any, to: Any) -> None:
    """Copy the language, the titles and the role of a stream."""
    to.metadata.update({name: value for name, value in stream.metadata.items() if name not in OWN_METADATA})
    to.disposition = stream.disposition

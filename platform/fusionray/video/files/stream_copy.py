"""Copy what is not edited from one container to another: the packets of other streams, chapters and metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction
from pathlib import Path

import av
from av import Packet
from av.container import InputContainer, OutputContainer
from av.stream import Discard, Stream

from fusionray.errors import VideoNotWritten
from fusionray.video.files.opening import VideoLimits, open_video

# Brands of the old file, and statistics and encoders of the old stream, which are not true of the new ones.
_CONTAINER_KEYS = {"major_brand", "minor_version", "compatible_brands", "encoder"}
_STREAM_KEYS = {"encoder", "bps", "duration", "number_of_frames", "number_of_bytes", "vendor_id"}
_MAX_FAULTS = 250
_NO_LIMITS = VideoLimits(max_pixels=2**31 - 1, max_side=2**31 - 1)


class StreamCopier:
    """Copies packets of a source file into an output container, byte for byte and at their times, in step with a video.

    The source was checked when its frames were read, so its size is not limited here.

    Raises:
        InputMissing, VideoRejected: the source cannot be opened.
    """

    def __init__(self, source: Path, output: OutputContainer) -> None:
        self._path = source
        self._input, self._video = open_video(source, _NO_LIMITS)
        self._output = output
        self._copies: dict[int, Stream] = {}
        self._packets: Iterator[Packet[Stream]] = iter(())
        self._waiting: Packet[Stream] | None = None

    @property
    def streams(self) -> list[Stream]:
        """Return the streams of the source, in its order."""
        return list(self._input.streams)

    def copy_headers(self, video: Stream) -> None:
        """Copy chapters and metadata of the container, and the metadata and disposition of the video stream."""
        metadata = self._input.metadata
        self._output.metadata.update({k: v for k, v in metadata.items() if k.lower() not in _CONTAINER_KEYS})
        if chapters := self._input.chapters():
            self._output.set_chapters(chapters)
        video.metadata.update({k: v for k, v in self._video.metadata.items() if not _is_stale(k)})
        video.disposition = self._video.disposition

    def add_stream(self, stream: Stream, leave_out: Collection[str]) -> None:
        """Add a copy of a source's stream to the output, unless its kind is left out or the container makes it itself.

        Raises:
            VideoNotWritten: the container cannot hold it.
        """
        if stream.type in leave_out or _is_made_anew(stream):
            return
        try:
            _check_data(stream, self._output)
            copy = self._output.add_stream_from_template(stream, opaque=True)
        except (ValueError, av.FFmpegError) as error:
            raise VideoNotWritten(
                f"{self._output.format.name} cannot hold stream {stream.index} of {self._path} ({stream.type}, "
                f"{stream.name or 'unknown'}): leave out {stream.type} streams, or choose another container"
            ) from error
        copy.metadata.update(stream.metadata)
        copy.disposition = stream.disposition
        self._copies[stream.index] = copy

    def start(self) -> None:
        """Begin to read packets: the streams are complete."""
        for stream in self._input.streams:
            if stream.index not in self._copies:
                stream.discard = Discard.all
        # Attachments lie in the header, and have no packets.
        read = [stream for stream in self._input.streams if stream.index in self._copies]
        if any(stream.type != "attachment" for stream in read):
            self._packets = _read_packets(self._input, read)

    def copy_until(self, time: Fraction | None) -> None:
        """Copy the packets that are decoded before `time`, in seconds; None: all that remain."""
        while (packet := self._waiting or next(self._packets, None)) is not None:
            self._waiting = packet
            if time is not None and packet.dts is not None and packet.dts * packet.time_base > time:
                return
            self._waiting = None
            if packet.dts is None:
                # A cover picture has no time, but a muxer wants one.
                packet.dts = packet.pts = packet.pts or 0
            packet.stream = self._copies[packet.stream.index]
            self._output.mux_one(packet)

    def close(self) -> None:
        """Close the source."""
        self._packets = iter(())
        self._input.close()


def _is_stale(key: str) -> bool:
    name = key.lower()
    return name.startswith("_statistics") or name.partition("-")[0] in _STREAM_KEYS


def _is_made_anew(stream: Stream) -> bool:
    """Tell whether a muxer makes a stream by itself: the text of MP4's chapters, or its track of time codes."""
    if stream.type != "data":
        return False
    return stream.discard == Discard.all or "timecode" in stream.metadata


def _check_data(stream: Stream, output: OutputContainer) -> None:
    """Check what the muxers themselves refuse without saying which stream it is."""
    if stream.type == "data" and (stream.name is None or output.format.name in {"matroska", "webm"}):
        raise ValueError("no place for these data")


def _read_packets(source: InputContainer, streams: list[Stream]) -> Iterator[Packet[Stream]]:
    """Read packets up to the end of the file. The demuxer finds the next packet after a damaged one by itself.

    Raises:
        InvalidDataError: after too many damaged packets.
    """
    faults = 0
    while True:
        try:
            for packet in source.demux(streams):
                if packet.size or packet.dts is not None:
                    yield packet
        except av.error.InvalidDataError:
            faults += 1
            if faults > _MAX_FAULTS:
                raise
        else:
            return

"""Read the frames of a video in the order and at the times in which they are shown."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
from av import Packet, VideoFrame
from av.container import InputContainer
from av.video.stream import VideoStream

from fusionray.errors import VideoRejected
from fusionray.faces.face import Image
from fusionray.video.files.animation import read_webp
from fusionray.video.files.describing import describe_video
from fusionray.video.files.opening import VideoLimits, open_video
from fusionray.video.frames.upright import read_upright

# How far before a time a seek goes back, in seconds, until it finds a key frame that is shown before it.
_SEEK_STEPS = (0, 1, 5, 30, 300)
# These containers know only when frames are decoded. As many are shown as are decoded, so the earliest of these times
# is when the next frame is shown.
_WITHOUT_TIMES = {"avi"}


class VideoReader:
    """A video file. Each iteration opens it anew, so several may run at once; nothing stays open between them.

    Interlaced frames are given as they are stored: two fields in one picture, `frame.interlaced_frame` set.

    Raises:
        InputMissing: there is no such file.
        VideoRejected: see `describe_video`.
    """

    def __init__(self, path: Path, limits: VideoLimits | None = None) -> None:
        self.path = path
        self.limits = limits or VideoLimits()
        self.description = describe_video(path, self.limits)

    def read_frames(
        self, start: Fraction | None = None, end: Fraction | None = None, damage: Damage | None = None
    ) -> Iterator[VideoFrame]:
        """Yield the frames with start <= time < end (seconds, None: no bound), each time later than the one before.

        Times are exact: `frame_time`. Decoding starts at a key frame that is shown no later than `start`. Frames that
        cannot be decoded are left out; these, and those with faults, are counted in `damage`. Frames may be edited in
        place: `planes.blend_region` copies what is shared.

        Raises:
            VideoRejected: with the reason "damaged" after too many damaged frames, or "size_changed".
        """
        damage = damage or Damage(self.path, self.limits)
        last: Fraction | None = None
        for frame in self._decode(start, damage):
            time = frame_time(frame)
            # Pictures before the start may depend on what was not decoded.
            if start is not None and time < start:
                continue
            if end is not None and time >= end:
                return
            if last is not None and time <= last:
                damage.count("its times run backwards")
                continue
            last = time
            if frame.is_corrupt:
                damage.count("frames with faults")
            yield frame

    def see(self, frame: VideoFrame, longest_side: int) -> Image:
        """Show a frame of this video upright, see `upright.read_upright`."""
        described = self.description
        return read_upright(
            frame, longest_side, orientation=described.orientation, sample_aspect=described.sample_aspect
        )

    def list_packets(self) -> Iterator[tuple[Fraction | None, bool]]:
        """Yield when each frame that is shown is, and whether it is a key frame, in the order of decoding; none is
        decoded. The time is None in containers that do not know it, such as AVI.

        Raises:
            VideoRejected: with the reason "damaged" after too many damaged packets.
        """
        if self.description.container == "webp":
            yield from ((frame_time(frame), False) for frame in read_webp(self.path, self.limits))
            return
        container, stream = open_video(self.path, self.limits)
        with container:
            for packet in self.demux(container, stream, Damage(self.path, self.limits)):
                if packet.size and not packet.is_discard:
                    yield None if packet.pts is None else packet.pts * packet.time_base, packet.is_keyframe

    def _decode(self, start: Fraction | None, damage: Damage) -> Iterator[VideoFrame]:
        if self.description.container == "webp":
            yield from read_webp(self.path, self.limits)
            return
        container, stream = self.open_at(start)
        with container:
            following: int | None = None
            decoding_times: list[int] = []
            for packet in self.demux(container, stream, damage):
                if packet.dts is not None and container.format.name in _WITHOUT_TIMES:
                    heapq.heappush(decoding_times, packet.dts)
                num_damaged = damage.number
                frames = decode_packet(packet, damage)
                if damage.number > num_damaged and packet.dts in decoding_times:
                    # No frame will be shown at its time.
                    decoding_times.remove(packet.dts)
                    heapq.heapify(decoding_times)
                for frame in frames:
                    if decoding_times:
                        frame.pts = heapq.heappop(decoding_times)
                    following = _set_time(frame, stream, following) + max(frame.duration, 1)
                    self._check_frame(frame)
                    yield frame

    def open_at(self, start: Fraction | None) -> tuple[InputContainer, VideoStream]:
        """Open the file at a key frame that is shown no later than `start`: containers seek by the time of decoding."""
        container, stream = open_video(self.path, self.limits)
        if start is None:
            return container, stream
        for back in _SEEK_STEPS:
            if self._seek(container, stream, start - back, start):
                return container, stream
        # Before the first key frame, or in a file without an index: read from its beginning.
        container.close()
        return open_video(self.path, self.limits)

    def _seek(self, container: InputContainer, stream: VideoStream, place: Fraction, start: Fraction) -> bool:
        assert stream.time_base is not None
        try:
            container.seek(int(place / stream.time_base), stream=stream)
            packets = self.demux(container, stream, Damage(self.path, self.limits))
            first = next((packet for packet in packets if packet.is_keyframe), None)
            container.seek(int(place / stream.time_base), stream=stream)
        except av.FFmpegError:
            return False
        return first is not None and first.pts is not None and first.pts * first.time_base <= start

    def demux(self, container: InputContainer, stream: VideoStream, damage: Damage) -> Iterator[Packet[VideoStream]]:
        """Yield the packets of the stream; where the file is damaged, it goes on with the next one."""
        while True:
            try:
                yield from container.demux(stream)
            except av.FFmpegError as error:
                # The demuxer finds the next packet by itself.
                damage.count(str(error.strerror))
            else:
                return

    def _check_frame(self, frame: VideoFrame) -> None:
        described = self.description
        if not described.is_of(frame):
            raise VideoRejected(
                "size_changed",
                f"{self.path}: at {float(frame_time(frame)):.3f} s its pictures change from {described.width} x "
                f"{described.height} {described.pixel_format} to {frame.width} x {frame.height} {frame.format.name}; "
                "cut it there",
            )


class Damage:
    """Counts what is damaged in one reading of a video, or of a part of it; `number` so far.

    A long video may have many parts with some faults each; one part with hundreds is not worth going on.
    """

    def __init__(self, path: Path, limits: VideoLimits) -> None:
        self.path = path
        self.limits = limits
        self.number = 0

    def count(self, fault: str) -> None:
        """Count a fault.

        Raises:
            VideoRejected: with the reason "damaged" if there are too many.
        """
        self.number += 1
        if self.number > self.limits.max_damaged_frames:
            raise VideoRejected(
                "damaged",
                f"{self.path}: more than {self.limits.max_damaged_frames} frames are damaged ({fault}); convert it, or "
                "raise max_damaged_frames",
            )


def decode_packet(packet: Packet[VideoStream], damage: Damage) -> list[VideoFrame]:
    """Decode a packet; one that cannot be decoded is counted, and has no frames."""
    try:
        return packet.decode()
    except av.FFmpegError as error:
        damage.count(str(error.strerror))
        return []


def frame_time(frame: VideoFrame) -> Fraction:
    """Return the time at which a frame is shown, in seconds, exactly."""
    assert frame.pts is not None
    assert frame.time_base is not None
    return frame.pts * frame.time_base


def _set_time(frame: VideoFrame, stream: VideoStream, following: int | None) -> int:
    """Give a frame without a time of its own (raw streams) that of its packet, or of the end of the one before."""
    if frame.time_base is None:
        frame.time_base = stream.time_base
    if frame.pts is None:
        frame.pts = frame.dts if frame.dts is not None else following or 0
    return frame.pts

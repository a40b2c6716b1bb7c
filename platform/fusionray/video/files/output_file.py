"""A video file that is being written, beside its final name: the container, and the copies of a source's streams."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import av
from av import Packet
from av.container import OutputContainer
from av.video.stream import VideoStream

from fusionray.errors import VideoNotWritten
from fusionray.storage.atomic_files import sync_folder
from fusionray.video.files.description import VideoDescription
from fusionray.video.files.stream_copy import StreamCopier

MOV_FORMATS = {".mp4", ".m4v", ".mov"}
# Time scales are unsigned 32-bit numbers.
_MAX_TIME_SCALE = 2**31 - 1


class OutputFile:
    """The file `path` until it is complete; its suffix chooses the container. `close` gives it its name.

    From `source` come all streams but the described video, packet by packet, as well as chapters, metadata,
    dispositions and languages; `leave_out` names kinds of streams ("audio", "subtitle", "data", "attachment", "video":
    covers) to leave out. `encoder` is named in errors.

    Until `close`, and after `discard`, `path` is as it was. A killed process leaves a hidden file beside it.

    Raises:
        VideoNotWritten: there is no such container, or it cannot hold a stream.
        InputMissing, VideoRejected: `source` cannot be read.
    """

    def __init__(
        self,
        path: Path,
        description: VideoDescription,
        source: Path | None,
        *,
        encoder: str,
        leave_out: Collection[str] = (),
    ) -> None:
        self.path = path
        self.description = description
        # An animated WebP has pictures alone, and FFmpeg does not read it.
        self.source = None if description.container == "webp" else source
        self.encoder = encoder
        self.leave_out = leave_out
        self._closed = False
        self._copier: StreamCopier | None = None
        self._part = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.part{path.suffix}")
        self.container = self._open()

    def start(self, add_video: Callable[[OutputContainer], VideoStream]) -> VideoStream:
        """Add the video, and copies of the source's other streams in its order; write the header."""
        with self.explain("cannot start"):
            video = self._add_streams(add_video)
            self.container.start_encoding()
        return video

    def mux(self, packets: list[Packet[VideoStream]]) -> None:
        """Write packets of the video, each after what else is decoded before it."""
        for packet in packets:
            if self._copier is not None and packet.dts is not None:
                self._copier.copy_until(packet.dts * packet.time_base)
            self.container.mux_one(packet)

    def close(self) -> None:
        """Write what remains of other streams, and give the file its name; it survives a power cut."""
        with self.explain("cannot finish"):
            if self._copier is not None:
                self._copier.copy_until(None)
                self._copier.close()
            self.container.close()
            with self._part.open("rb") as file:
                os.fsync(file.fileno())
            self._part.replace(self.path)
            sync_folder(self.path.parent)
        self._closed = True

    def discard(self) -> None:
        """Remove what was written; does nothing after `close`."""
        if self._closed:
            return
        self._closed = True
        with suppress(av.FFmpegError, OSError, ValueError):
            self.container.close()
        if self._copier is not None:
            self._copier.close()
        self._part.unlink(missing_ok=True)

    @contextmanager
    def explain(self, failed: str) -> Iterator[None]:
        """Turn an error of FFmpeg into one line."""
        try:
            yield
        except (av.FFmpegError, OSError) as error:
            raise VideoNotWritten(
                f"{self.path}: {failed} with {self.encoder} ({error.strerror or error}); check the disk, and the "
                "encoder (NVENC needs a GPU) with its settings"
            ) from error

    def _open(self) -> OutputContainer:
        if not self.path.parent.is_dir():
            raise VideoNotWritten(f"{self.path}: there is no folder {self.path.parent}; make it first")
        options = {}
        if self.path.suffix.lower() in MOV_FORMATS:
            # Edit lists, which hold start offsets, count in this scale: thousandths would round them.
            options["movie_timescale"] = str(self._choose_time_scale())
        if self.path.suffix.lower() in {".mkv", ".webm"}:
            # The priming of AAC lies before 0: by default, all streams would be moved to begin at 0.
            options["avoid_negative_ts"] = "disabled"
        if self.path.suffix.lower() in {".ts", ".m2ts"}:
            options["mpegts_copyts"] = "1"
        try:
            return av.open(str(self._part), "w", container_options=options)
        except (ValueError, av.FFmpegError) as error:
            raise VideoNotWritten(
                f"{self.path}: {self.path.suffix or 'no suffix'} is no container that can be written; use .mp4, .mov, "
                ".mkv or .webm"
            ) from error

    def _choose_time_scale(self) -> int:
        scale = math.lcm(self.description.time_base.denominator, 1000)
        return scale if scale <= _MAX_TIME_SCALE else self.description.time_base.denominator

    def _add_streams(self, add_video: Callable[[OutputContainer], VideoStream]) -> VideoStream:
        if self.source is None:
            return add_video(self.container)
        self._copier = StreamCopier(self.source, self.container)
        video: VideoStream | None = None
        for stream in self._copier.streams:
            if stream.index == self.description.stream_index:
                video = add_video(self.container)
                self._copier.copy_headers(video)
            else:
                self._copier.add_stream(stream, self.leave_out)
        assert video is not None  # the description is of the source
        self._copier.start()
        return video

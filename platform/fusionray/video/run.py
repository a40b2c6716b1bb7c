"""Make a video: scan all segments, plan, render segment by segment, join, sign."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import av

from fusionray import __version__
from fusionray.errors import NoFaceFound
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.storage.atomic_files import sync_folder
from fusionray.video.files.joining import join_segments
from fusionray.video.files.reader import VideoReader
from fusionray.video.files.writer import VideoWriter
from fusionray.video.preview import write_preview
from fusionray.video.segments import SEGMENT_SECONDS, Segment, plan_segments
from fusionray.video.stages import Advance, StageSeconds
from fusionray.video.work import SegmentScan, VideoPlan, VideoWork, Workers
from fusionray.video.workspace import MadeOf, Workspace, claim

# The containers that can be signed.
MEDIA_TYPES = {".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/quicktime"}


class ShowProgress(Protocol):
    """Shows the progress of a pass: `total` frames, of which an earlier run has done some."""

    def __call__(self, stage: str, total: int, done: int) -> AbstractContextManager[Advance]:
        """Return a block that is given what to call with each number of frames."""
        ...


@dataclass(frozen=True, eq=False)
class MadeVideo:
    """What was made, by which plan. `num_resumed`: frames that an earlier run has rendered; `num_damaged`: faults of
    the target's frames, which were left out if they could not be decoded. `film_sha256`: hash of the video before it
    was signed, the same however often a run was killed.

    `seconds`: of the whole run, and of the stages, which overlap; those of an earlier run are not in them.
    """

    plan: Any
    segments: list[Segment]
    num_frames: int
    num_resumed: int
    num_damaged: int
    film_sha256: str
    wall_seconds: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class VideoRun:
    """A video to make, by some work. `preview`: where a picture of the newest segment is put while the rest is made.
    `complete` is called when the video has its name, before that of which it was made is removed: if the process is
    killed in it, the next run needs only to join and sign again.
    """

    work: VideoWork
    output: Path
    signer: Signer
    provenance: Provenance
    segment_seconds: Fraction = SEGMENT_SECONDS
    preview: Path | None = None
    complete: Callable[[MadeVideo], object] = lambda _: None

    def make(self, workers: Workers, show: ShowProgress) -> MadeVideo:
        """Make the video; what an earlier run has finished is kept.

        The result has its name only when it is complete, and signed; its folder must be there. After an error the
        finished segments stay.

        Raises: NoFaceFound if there is nothing to do; VideoRejected; VideoNotWritten; VideoInUse if another process
        makes it.
        """
        started, seconds = time.monotonic(), StageSeconds()
        task = self.work.task
        reader = VideoReader(task.target)
        # Hours of work must not end with a container that cannot hold the sound.
        with TemporaryDirectory(prefix="fusionray-video-") as folder:
            trial = Path(folder) / f"trial{self.output.suffix}"
            VideoWriter(trial, reader.description, reader.path, task.encoder, leave_out=task.leave_out).discard()
        with claim(self.output):
            space = Workspace(self.output, self.made_of(), lambda: plan_segments(reader, self.segment_seconds))
            with seconds.measure(self.work.passes[0].partition(" ")[0]):
                scans = self.scan(space, workers, show)
            try:
                plan = self.work.plan(scans)
            except NoFaceFound:
                space.remove()
                raise
            num_resumed = self.render(space, scans, plan, workers, show, seconds=seconds)
            with seconds.measure("join"):
                digest = self.finish(space, reader)
            made = MadeVideo(
                plan,
                space.segments,
                sum(scan.num_frames for scan in scans),
                num_resumed,
                sum(scan.num_damaged for scan in scans),
                digest,
                time.monotonic() - started,
                seconds.seconds,
            )
            self.complete(made)
            space.remove()
        return made

    def made_of(self) -> MadeOf:
        """Say what the files of the segments depend on."""
        task = self.work.task
        file = task.target.stat()
        scans = {
            "target": [str(task.target.resolve()), file.st_size, file.st_mtime_ns],
            "work": self.work.passes,
            **self.work.scan_settings,
            "segment_seconds": str(self.segment_seconds),
            "versions": [__version__, av.__version__],
        }
        films = {
            **self.work.render_settings,
            "bundle": self.provenance.bundle,
            "mark": task.mark.model_dump(),
            "encoder": asdict(task.encoder) | {"options": dict(task.encoder.options)},
        }
        return MadeOf(scans, films)

    def scan(self, space: Workspace, workers: Workers, show: ShowProgress) -> list[SegmentScan]:
        """Scan the segments that are not scanned yet."""
        missing = [segment for segment in space.segments if not space.scan_of(segment).exists()]
        with show(self.work.passes[0], *count(space.segments, missing)) as advance:
            for segment, scan in workers.scan(missing, advance):
                space.write_scan(segment, scan.encode())
        return [self.work.decode(space.scan_of(segment).read_bytes()) for segment in space.segments]

    def render(
        self,
        space: Workspace,
        scans: list[SegmentScan],
        plan: VideoPlan,
        workers: Workers,
        show: ShowProgress,
        *,
        seconds: StageSeconds,
    ) -> int:
        """Render the segments whose films are not there yet; return the number of the frames of the others."""
        missing: list[tuple[Segment, Any]] = []
        first = 0
        for segment, scan in zip(space.segments, scans, strict=True):
            if not space.film_of(segment).exists():
                missing.append((segment, plan.part(first, scan.num_frames)))
            first += scan.num_frames
        total, done = count(space.segments, [segment for segment, _ in missing])
        with show(self.work.passes[1], total, done) as advance:
            for segment, part in workers.render(missing, space.film_of, advance):
                seconds.add(part)
                if self.preview is not None:
                    write_preview(space.film_of(segment), self.preview, self.signer, self.provenance)
        return done

    def finish(self, space: Workspace, reader: VideoReader) -> str:
        """Join the segments, sign, and give the result its name; return the hash of what was joined."""
        film, signed = space.folder / f"film{self.output.suffix}", space.folder / f"signed{self.output.suffix}"
        films = [space.film_of(segment) for segment in space.segments]
        join_segments(films, film, reader.description, reader.path, leave_out=self.work.task.leave_out)
        with film.open("rb") as unsigned, signed.open("w+b") as result:
            digest = hashlib.file_digest(unsigned, "sha256").hexdigest()
            unsigned.seek(0)
            media_type = MEDIA_TYPES[self.output.suffix.lower()]
            self.signer.sign_stream(unsigned, result, media_type, self.provenance)
        signed.replace(self.output)
        sync_folder(self.output.parent)
        return digest


def count(segments: list[Segment], missing: list[Segment]) -> tuple[int, int]:
    """Count the frames of all segments, and those that are not missing."""
    total = sum(segment.num_frames for segment in segments)
    return total, total - sum(segment.num_frames for segment in missing)

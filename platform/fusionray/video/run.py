"""Make a video: find the faces of all segments, choose, fuse segment by segment, join, sign."""

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
from fusionray.video.finding import SegmentFaces, join_faces
from fusionray.video.fusing import FramePlan
from fusionray.video.preview import write_preview
from fusionray.video.segments import SEGMENT_SECONDS, Segment, plan_segments
from fusionray.video.stages import Advance, StageSeconds
from fusionray.video.tracks import Track
from fusionray.video.work import VideoTask, Workers
from fusionray.video.workspace import MadeOf, Workspace, claim

# The containers that can be signed.
MEDIA_TYPES = {".mp4": "video/mp4", ".m4v": "video/mp4", ".mov": "video/quicktime"}


class ShowProgress(Protocol):
    """Shows the progress of a stage: `total` frames, of which an earlier run has done some."""

    def __call__(self, stage: str, total: int, done: int) -> AbstractContextManager[Advance]:
        """Return a block that is given what to call with each number of frames."""
        ...


@dataclass(frozen=True, eq=False)
class FusedVideo:
    """What was made. `num_resumed`: frames that an earlier run has fused; `num_damaged`: faults of the target's frames,
    which were left out if they could not be decoded. `film_sha256`: hash of the video before it was signed, the same
    however often a run was killed.

    `seconds`: of the whole run, and of the stages, which overlap; those of an earlier run are not in them.
    """

    plan: FramePlan
    segments: list[Segment]
    num_frames: int
    num_resumed: int
    num_damaged: int
    film_sha256: str
    wall_seconds: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class VideoRun:
    """A video to make: `task` says of what, `choose` gives the number of the source by that of the track, `settings` is
    what else the frames depend on, as JSON: a run with other settings makes them anew. `preview`: where a picture of
    the newest segment is put while the rest is made. `complete` is called when the video has its name, before that of
    which it was made is removed: if the process is killed in it, the next run needs only to join and sign again.
    """

    task: VideoTask
    output: Path
    choose: Callable[[list[Track]], Mapping[int, int]]
    settings: Mapping[str, Any]
    signer: Signer
    provenance: Provenance
    segment_seconds: Fraction = SEGMENT_SECONDS
    preview: Path | None = None
    complete: Callable[[FusedVideo], object] = lambda _: None

    def make(self, workers: Workers, show: ShowProgress) -> FusedVideo:
        """Make the video; what an earlier run has finished is kept.

        The result has its name only when it is complete, and signed; its folder must be there. After an error the
        finished segments stay.

        Raises: NoFaceFound if there is nobody to fuse; VideoRejected; VideoNotWritten; VideoInUse if another process
        makes it.
        """
        started, seconds = time.monotonic(), StageSeconds()
        reader = VideoReader(self.task.target)
        # Hours of work must not end with a container that cannot hold the sound.
        with TemporaryDirectory(prefix="fusionray-video-") as folder:
            trial, task = Path(folder) / f"trial{self.output.suffix}", self.task
            VideoWriter(trial, reader.description, reader.path, task.encoder, leave_out=task.leave_out).discard()
        with claim(self.output):
            space = Workspace(self.output, self.made_of(), lambda: plan_segments(reader, self.segment_seconds))
            with seconds.measure("find"):
                faces = self.find(space, workers, show)
            tracks = join_faces(faces)
            if not tracks:
                space.remove()
                raise NoFaceFound(f"{self.task.target}: no face found in the video; nothing was written")
            plan = FramePlan.of(tracks, self.choose(tracks))
            num_resumed = self.fuse(space, faces, plan, workers, show, seconds=seconds)
            with seconds.measure("join"):
                digest = self.finish(space, reader)
            made = FusedVideo(
                plan,
                space.segments,
                sum(segment.num_frames for segment in faces),
                num_resumed,
                sum(segment.num_damaged for segment in faces),
                digest,
                time.monotonic() - started,
                seconds.seconds,
            )
            self.complete(made)
            space.remove()
        return made

    def made_of(self) -> MadeOf:
        """Say what the files of the segments depend on."""
        file, task = self.task.target.stat(), self.task
        faces = {
            "target": [str(task.target.resolve()), file.st_size, file.st_mtime_ns],
            # The part of the bundle that tells people apart.
            "bundle": self.provenance.bundle if task.with_identities else None,
            "segment_seconds": str(self.segment_seconds),
            "versions": [__version__, av.__version__],
        }
        films = {
            **self.settings,
            "sources": [hashlib.sha256(source.tobytes()).hexdigest() for source in task.sources],
            "bundle": self.provenance.bundle,
            "mark": task.mark.model_dump(),
            "copy_unchanged": task.copy_unchanged,
            "encoder": asdict(task.encoder) | {"options": dict(task.encoder.options)},
        }
        return MadeOf(faces, films)

    def find(self, space: Workspace, workers: Workers, show: ShowProgress) -> list[SegmentFaces]:
        """Find the faces of the segments whose faces are not known yet."""
        missing = [segment for segment in space.segments if not space.faces_of(segment).exists()]
        with show("find faces", *count(space.segments, missing)) as advance:
            for segment, faces in workers.find(missing, advance):
                space.write_faces(segment, faces)
        return space.read_faces()

    def fuse(
        self,
        space: Workspace,
        faces: list[SegmentFaces],
        plan: FramePlan,
        workers: Workers,
        show: ShowProgress,
        *,
        seconds: StageSeconds,
    ) -> int:
        """Fuse the segments whose films are not there yet; return the number of the frames of the others."""
        missing: list[tuple[Segment, FramePlan]] = []
        first = 0
        for segment, found in zip(space.segments, faces, strict=True):
            if not space.film_of(segment).exists():
                missing.append((segment, plan.part(first, found.num_frames)))
            first += found.num_frames
        total, done = count(space.segments, [segment for segment, _ in missing])
        with show("fuse", total, done) as advance:
            for segment, part in workers.fuse(missing, space.film_of, advance):
                seconds.add(part)
                if self.preview is not None:
                    write_preview(space.film_of(segment), self.preview, self.signer, self.provenance)
        return done

    def finish(self, space: Workspace, reader: VideoReader) -> str:
        """Join the segments, sign, and give the result its name; return the hash of what was joined."""
        film, signed = space.folder / f"film{self.output.suffix}", space.folder / f"signed{self.output.suffix}"
        films = [space.film_of(segment) for segment in space.segments]
        join_segments(films, film, reader.description, reader.path, leave_out=self.task.leave_out)
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

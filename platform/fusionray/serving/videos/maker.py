"""Make the film of a job, in whichever process: read the inputs, ask the policies, work by segments, report."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fusionray.bundle.bundle import Bundle, hash_file
from fusionray.errors import VideoInUse
from fusionray.runtime.config import RuntimeConfig
from fusionray.safety.mark import MarkConfig
from fusionray.safety.provenance import Provenance
from fusionray.safety.target_policy import TargetPolicy, open_target_policy
from fusionray.serving.config import ServeConfig
from fusionray.serving.jobs.films import FIGURES_NAME, REPORT_NAME, FilmFolder, MadeFilm
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.service_key import open_jobs_key
from fusionray.serving.jobs.uris import UriReader
from fusionray.serving.pipeline.model_cache import open_bundle
from fusionray.serving.pipeline.picture_codec import PictureCodec
from fusionray.serving.videos.checking import count_frames
from fusionray.serving.videos.order import VideoOrder
from fusionray.serving.videos.progress import ProgressWriter
from fusionray.serving.videos.target_check import CheckedWorker
from fusionray.storage.atomic_files import replace_private_file
from fusionray.video.face_fusion.plan import PlannedFace
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.signature import SIGNATURE_BYTES, find_video_suffix
from fusionray.video.report import ReportParts, write_report
from fusionray.video.run import MadeVideo, VideoRun
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.work import LocalWorkers, SegmentScan, SegmentWorker, VideoWork

# How often a task looks whether the one before it, whose order was replaced, has left the film.
CLAIM_SECONDS = 0.5


@dataclass(frozen=True, eq=False)
class PreparedFilm:
    """What a task does with a film: its work, a worker, what the report says of it, and the sha256 of the inputs beside
    the film, by their names. `model`: what made it. `count_faces`: of what was made; None if the task has nothing to do
    with faces.
    """

    work: VideoWork
    worker: SegmentWorker
    describe: Callable[[MadeVideo], ReportParts]
    inputs_sha256: Mapping[str, str]
    model: str
    count_faces: Callable[[MadeVideo], int] | None = None


class FilmMaker(ABC):
    """Make the film of an order. `threads`: CPUs for it; `stop` is set when the order is withdrawn.

    `task`: name of the served task; `role`: what it calls the film; `stem`: of the name of the result. Every segment
    that is finished clears the attempts of the job: a long film may meet many deaths of machines.
    """

    task: str
    role: str
    stem: str

    def __init__(self, order: VideoOrder, config: ServeConfig, threads: int, stop: threading.Event) -> None:
        film = order.folder.film
        assert film is not None
        self.order = order
        self.options = order.folder.record.options
        self.config = config
        self.threads = threads
        self.stop = stop
        self.film: FilmFolder = film
        self.progress = ProgressWriter(film, stop, config.limits.max_video_frames)
        self.codec = PictureCodec(config)

    @abstractmethod
    def prepare(self, inputs: JobInputs, bundle: Bundle) -> PreparedFilm:
        """Load the models, read the inputs beside the film, and ask the policies about them.

        Raises: ImageRejected, ConsentRefused, TargetRefused, UnknownIdentity; BundleInvalid, ProviderUnavailable.
        """

    def make(self) -> MadeFilm:
        """Make the film.

        Raises: Withdrawn; VideoRejected, VideoNotWritten, and what `prepare` raises, for a client's fault;
            BundleInvalid, SigningFailed, OSError.
        """
        self.progress.enter("reading")
        inputs = self.order.folder.read_inputs(open_jobs_key(self.config.jobs))
        self.fetch(inputs)
        count_frames(self.film.target, self.config.limits)
        bundle = open_bundle(self.order.version, self.config.tracking_uri)
        prepared = self.prepare(inputs, bundle)
        provenance = Provenance(prepared.model, self.order.version.bundle)
        output = self.film.path / f"{self.stem}{prepared.work.task.suffix}"
        run = VideoRun(
            prepared.work,
            output,
            self.codec.signer,
            provenance,
            Fraction(self.config.videos.segment_seconds).limit_denominator(1000),
            self.film.preview,
            partial(self.complete, prepared=prepared, output=output, provenance=provenance),
        )
        self.run(run, SegmentWorkers(prepared.worker, self.film.clear_attempts))
        made = self.film.read_made()
        assert made is not None
        return made

    def runtime(self) -> RuntimeConfig:
        """Return the settings of the models: as many threads as there are CPUs for the film."""
        runtime = self.config.runtime
        return runtime.model_copy(update={"threads": runtime.threads or self.threads})

    def describe_output(self, *, mark: bool) -> dict[str, Any]:
        """Describe how the result is written: fields of a `VideoTask`. `mark`: whether the client wants one."""
        config = self.config
        return {
            "encoder": EncoderSettings(config.videos.encoder, config.videos.quality, config.videos.preset),
            "mark": MarkConfig.model_validate({**config.mark.model_dump(), "enabled": config.mark.enabled or mark}),
            "threads": self.threads,
            "leave_out": tuple(self.options["leave_out"]),
        }

    def find_suffix(self) -> str:
        """Return the suffix of the result: that of the film, if it is one of MP4 or QuickTime."""
        return find_video_suffix(read_start(self.film.target)) or ".mp4"

    @cached_property
    def policy(self) -> TargetPolicy | None:
        """The policy for targets, if there is one."""
        return open_target_policy(self.config.target_policy)

    @cached_property
    def film_sha256(self) -> str:
        """The sha256 of the client's film."""
        return hash_file(self.film.target)

    def check_frames(
        self, worker: SegmentWorker, faces_of: Callable[[Any], Mapping[int, list[PlannedFace]]] | None = None
    ) -> SegmentWorker:
        """Let the policy, if there is one, be asked about frames before a worker changes them: see `CheckedWorker`."""
        if self.policy is None:
            return worker
        seconds = self.config.videos.policy_seconds
        return CheckedWorker(worker, self.policy, seconds, self.progress.check, faces_of=faces_of)

    def fetch(self, inputs: JobInputs) -> None:
        """Copy a film that is named by a URI into the folder of the job, once.

        Raises: ImageRejected; OSError.
        """
        if not inputs.target_uris or self.film.target.exists():
            return
        limits = self.config.limits
        reader = UriReader(self.config.jobs.allowed_uris, limits.max_body_bytes)
        reader.copy(inputs.target_uris[0], self.film.target, limits.max_video_bytes)

    def run(self, run: VideoRun, workers: LocalWorkers) -> None:
        """Make the film, as soon as the task of the order before this one has left it.

        Raises: Withdrawn, and what `VideoRun.make` raises.
        """
        while True:
            try:
                run.make(workers, self.progress)
            except VideoInUse:
                self.stop.wait(CLAIM_SECONDS)
                self.progress.check()
            else:
                return

    def complete(self, made: MadeVideo, *, prepared: PreparedFilm, output: Path, provenance: Provenance) -> None:
        """Write the report, and what was made."""
        # What writes reports makes folders that are not there, and that of the job may be removed just now.
        with TemporaryDirectory(prefix="fusionray-video-") as folder:
            parts, signer = prepared.describe(made), self.codec.signer
            write_report(Path(folder), made, parts, self.film.target, output, signer=signer, provenance=provenance)
            for name in (REPORT_NAME, FIGURES_NAME):
                replace_private_file(self.film.path / name, (Path(folder) / name).read_bytes())
        self.progress.enter("made", made.num_frames, made.num_frames)
        self.film.write_made(
            MadeFilm(
                output.name,
                self.task,
                provenance.model,
                provenance.bundle,
                None if prepared.count_faces is None else prepared.count_faces(made),
                made.num_frames,
                {**prepared.inputs_sha256, self.role: self.film_sha256},
                hash_file(output),
                made.film_sha256,
            )
        )


class SegmentWorkers(LocalWorkers):
    """The worker of a process; `finished` is called after each segment whose scan or frames are stored."""

    def __init__(self, worker: SegmentWorker, finished: Callable[[], None]) -> None:
        super().__init__(worker)
        self.finished = finished

    def scan(self, segments: Sequence[Segment], advance: Advance) -> Generator[tuple[Segment, SegmentScan]]:
        """Scan segments."""
        with closing(super().scan(segments, advance)) as answers:
            for answer in answers:
                yield answer
                self.finished()

    def render(
        self, parts: Sequence[tuple[Segment, Any]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Generator[tuple[Segment, dict[str, float]]]:
        """Write the new frames of segments."""
        with closing(super().render(parts, path_of, advance)) as answers:
            for answer in answers:
                yield answer
                self.finished()


def read_start(path: Path) -> bytes:
    """Read the first bytes of a film."""
    with path.open("rb") as file:
        return file.read(SIGNATURE_BYTES)

"""Make the film of a job, in whichever process: read the inputs, ask the policies, fuse segment by segment, report."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fusionray.errors import ImageRejected, VideoInUse
from fusionray.faces.detect import DetectorPool
from fusionray.runtime.face_preprocessor import find_largest_face
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.consent import build_policy
from fusionray.safety.provenance import Provenance
from fusionray.safety.target_policy import open_target_policy
from fusionray.serving.config import ServeConfig
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.films import FIGURES_NAME, REPORT_NAME, FilmFolder, MadeFilm
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.service_key import open_jobs_key
from fusionray.serving.jobs.uris import UriReader
from fusionray.serving.pipeline.model_cache import open_bundle
from fusionray.serving.pipeline.picture_codec import PictureCodec, Stopwatch
from fusionray.serving.pipeline.source_faces import SourceFaces
from fusionray.serving.schema import FuseOptions, FuseTask
from fusionray.serving.videos.checking import count_frames
from fusionray.serving.videos.order import VideoOrder
from fusionray.serving.videos.progress import ProgressWriter
from fusionray.serving.videos.target_check import CheckedWorker
from fusionray.storage.atomic_files import replace_private_file
from fusionray.video.face_fusion.choosing import choose_all, choose_main, choose_similar
from fusionray.video.face_fusion.report import describe_fusion
from fusionray.video.face_fusion.tracks import Track
from fusionray.video.face_fusion.work import FusionTask, FusionWork, FusionWorker, count_searches
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.signature import SIGNATURE_BYTES, find_video_suffix
from fusionray.video.report import write_report
from fusionray.video.run import MadeVideo, VideoRun
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.work import LocalWorkers, SegmentScan, SegmentWorker

# How often a task looks whether the one before it, whose order was replaced, has left the film.
CLAIM_SECONDS = 0.5
FILM_STEM = "fused"


class FilmMaker:
    """Make the film of an order. `threads`: CPUs for it; `stop` is set when the order is withdrawn.

    Every segment that is finished clears the attempts of the job: a long film may meet many deaths of machines.
    """

    def __init__(self, order: VideoOrder, config: ServeConfig, threads: int, stop: threading.Event) -> None:
        film = order.folder.film
        assert film is not None
        self.order = order
        self.config = config
        self.threads = threads
        self.stop = stop
        self.film: FilmFolder = film
        self.progress = ProgressWriter(film, stop, config.limits.max_video_frames)
        self.options = FuseOptions(**order.folder.record.options["fuse"])
        self.codec = PictureCodec(config)

    def make(self) -> MadeFilm:
        """Make the film, or find what an earlier task has made.

        Raises: Withdrawn; VideoRejected, VideoNotWritten, ImageRejected, ConsentRefused, TargetRefused,
            UnknownIdentity for a client's fault; BundleInvalid, SigningFailed, OSError.
        """
        made = self.film.read_made()
        if made is not None:
            return made
        self.progress.enter("reading")
        inputs = self.order.folder.read_inputs(open_jobs_key(self.config.jobs))
        self.fetch(inputs)
        count_frames(self.film.target, self.config.limits)
        fuser = self.open_fuser()
        source, source_sha256 = self.encode_source(inputs, fuser)
        reference = self.embed_reference(inputs, fuser)
        task = self.describe_task(source)
        provenance = Provenance(fuser.bundle.description.name, self.order.version.bundle)
        output = self.film.path / f"{FILM_STEM}{task.suffix}"
        work = FusionWork(
            task,
            partial(self.choose, reference=reference, least=inputs.reference_similarity),
            {"faces": self.options.faces, "who": None if reference is None else hash_array(reference)},
            provenance.bundle,
        )
        run = VideoRun(
            work,
            output,
            self.codec.signer,
            provenance,
            Fraction(self.config.videos.segment_seconds).limit_denominator(1000),
            self.film.preview,
            partial(self.complete, output=output, provenance=provenance, source_sha256=source_sha256),
        )
        self.run(run, SegmentWorkers(self.open_worker(task, fuser), self.film.clear_attempts))
        made = self.film.read_made()
        assert made is not None
        return made

    def open_fuser(self) -> Fuser:
        """Load the models, with as many threads and detectors as there are CPUs.

        Raises: BundleInvalid, ProviderUnavailable.
        """
        config, version = self.config, self.order.version
        detectors = DetectorPool(config.detector, count_searches(self.threads), config.smallest_face)
        runtime = config.runtime.model_copy(update={"threads": config.runtime.threads or self.threads})
        return Fuser(open_bundle(version, config.tracking_uri), detectors, runtime, precision=version.precision)

    def describe_task(self, source: FloatArray) -> FusionTask:
        """Describe what is made of the film, with an encoded source."""
        config = self.config
        return FusionTask(
            self.film.target,
            find_video_suffix(read_start(self.film.target)) or ".mp4",
            self.order.version.location,
            config.tracking_uri,
            [source],
            self.options.faces != "all",
            encoder=EncoderSettings(config.videos.encoder, config.videos.quality, config.videos.preset),
            mark=config.mark.model_copy(update={"enabled": config.mark.enabled or self.options.mark}),
            threads=self.threads,
            leave_out=tuple(self.order.folder.record.options["leave_out"]),
        )

    def fetch(self, inputs: JobInputs) -> None:
        """Copy a film that is named by a URI into the folder of the job, once.

        Raises: ImageRejected; OSError.
        """
        if not inputs.target_uris or self.film.target.exists():
            return
        limits = self.config.limits
        reader = UriReader(self.config.jobs.allowed_uris, limits.max_body_bytes)
        reader.copy(inputs.target_uris[0], self.film.target, limits.max_video_bytes)

    def encode_source(self, inputs: JobInputs, fuser: Fuser) -> tuple[FloatArray, str]:
        """Encode the source, if the consent policy permits it; return the sha256 of its picture, too.

        Raises: ImageRejected, ConsentRefused, UnknownIdentity; OSError.
        """
        sent: bytes | str | None = inputs.identity or inputs.source
        if inputs.source_uri is not None:
            reader = UriReader(self.config.jobs.allowed_uris, self.config.limits.max_body_bytes)
            sent = reader.read(inputs.source_uri, "source")
        assert sent is not None
        owner = self.order.folder.record.owner
        options = FuseOptions(**{**vars(self.options), "consent": inputs.consent})
        task = FuseTask((sent,), b"", self.order.version, options, float("inf"), owner)
        sources = SourceFaces(self.codec, build_policy(self.config.consent), open_store(self.config.identities))
        encoded, hashes = sources.encode(task, fuser.preprocessor, Stopwatch())
        return encoded[0], hashes[0]

    def embed_reference(self, inputs: JobInputs, fuser: Fuser) -> FloatArray | None:
        """Compute the identity of the reference, float32 [E]; None if there is none.

        Raises: ImageRejected; also if a person is to be chosen, and the model compares no faces.
        """
        preprocessor = fuser.preprocessor
        if self.options.faces != "all" and not preprocessor.compares_faces:
            raise ImageRejected(
                "no_identity_encoder", "this model takes pictures as sources and compares no faces; send faces=all"
            )
        if inputs.reference is None:
            return None
        image = self.codec.decode(inputs.reference)
        return preprocessor.embed_face(image, find_largest_face(preprocessor.detector, image, "reference"))

    def choose(
        self, tracks: Sequence[Track], *, reference: FloatArray | None, least: float | None
    ) -> Mapping[int, int]:
        """Choose the tracks that get the source.

        Raises: ImageRejected.
        """
        if reference is not None and least is not None:
            return choose_similar(tracks, [reference], least, ["the reference"])
        return choose_all(tracks) if self.options.faces == "all" else choose_main(tracks)

    def open_worker(self, task: FusionTask, fuser: Fuser) -> FusionWorker:
        """Make the worker; it asks the target policy, if there is one."""
        policy = open_target_policy(self.config.target_policy)
        if policy is None:
            return FusionWorker(task, fuser)
        return CheckedWorker(task, fuser, policy, self.config.videos.policy_seconds, self.progress.check)

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

    def complete(self, made: MadeVideo, *, output: Path, provenance: Provenance, source_sha256: str) -> None:
        """Write the report, and what was made."""
        # What writes reports makes folders that are not there, and that of the job may be removed just now.
        with TemporaryDirectory(prefix="fusionray-video-") as folder:
            parts = describe_fusion(made, self.film.target.name, provenance.model)
            signer = self.codec.signer
            write_report(Path(folder), made, parts, self.film.target, output, signer=signer, provenance=provenance)
            for name in (REPORT_NAME, FIGURES_NAME):
                replace_private_file(self.film.path / name, (Path(folder) / name).read_bytes())
        self.progress.enter("made", made.num_frames, made.num_frames)
        self.film.write_made(
            MadeFilm(
                output.name,
                provenance.model,
                provenance.bundle,
                made.plan.num_faces,
                made.num_frames,
                source_sha256,
                hash_file(self.film.target),
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


def hash_file(path: Path) -> str:
    """Return the sha256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_array(array: FloatArray) -> str:
    """Return the sha256 of an array, hexadecimal."""
    return hashlib.sha256(array.tobytes()).hexdigest()

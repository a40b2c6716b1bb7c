"""What the parts of the benchmark share: a rendered film, the models, and a run of the product on a film."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import cv2

from fusionray.benchmarks.video.config import VideoBenchConfig
from fusionray.bundle.bundle import Bundle, bundle_hash
from fusionray.evaluation.rendered_film import RenderedFilm
from fusionray.faces.face import Image
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer, build_signer
from fusionray.safety.signing_keys import SigningConfig
from fusionray.video.face_fusion.finding import SEARCH_SIDE
from fusionray.video.face_fusion.work import FusionTask, FusionWork, FusionWorker, open_fuser
from fusionray.video.files.reader import VideoReader
from fusionray.video.run import MadeVideo, VideoRun
from fusionray.video.segments import SEGMENT_SECONDS
from fusionray.video.stages import Advance
from fusionray.video.work import LocalWorkers


@dataclass(frozen=True)
class VideoBenchContext:
    """Shared state of one running benchmark."""

    config: VideoBenchConfig
    bundle: Bundle

    @property
    def output(self) -> Path:
        """Return the folder of the benchmark."""
        return Path(self.config.output)

    @cached_property
    def film(self) -> RenderedFilm:
        """Describe the rendered film."""
        return RenderedFilm(self.config.width, self.config.height, self.config.frames)

    @cached_property
    def target(self) -> Path:
        """Render the film into the output folder."""
        return self.film.write(self.output / "film.mp4")

    @cached_property
    def twice(self) -> Path:
        """Write the film twice in a row: it has several segments."""
        return self.film.write(self.output / "twice.mp4", repeat=2)

    @property
    def twice_frames(self) -> int:
        """Return the number of its frames."""
        return 2 * self.config.frames

    @cached_property
    def source_picture(self) -> Path:
        """Draw the source into the output folder."""
        path = self.output / "source.png"
        cv2.imwrite(str(path), cv2.cvtColor(self.film.draw_source(), cv2.COLOR_RGB2BGR))
        return path

    @cached_property
    def fuser(self) -> Fuser:
        """Load the models."""
        return open_fuser(self.bundle)

    @cached_property
    def source(self) -> FloatArray:
        """Encode the source."""
        return self.fuser.encode_source(self.film.draw_source())

    @cached_property
    def signer(self) -> Signer:
        """Open the test key."""
        return build_signer(SigningConfig(test_key_folder=str(self.output / "key")))

    def task(self, target: Path) -> FusionTask:
        """Describe the work on a film; people are not told apart, which an untrained model cannot."""
        return FusionTask(target, ".mp4", str(self.bundle.folder), None, [self.source], with_identities=False)

    def fuse(self, target: Path, output: Path, seconds: Fraction = SEGMENT_SECONDS) -> tuple[MadeVideo, float]:
        """Fuse all faces of a film in this process, as `fusionray fuse-video --faces all` does; return the seconds."""
        task = self.task(target)
        provenance = Provenance(self.bundle.description.name, bundle_hash(self.bundle))
        work = FusionWork(task, lambda tracks: dict.fromkeys(range(len(tracks)), 0), {}, provenance.bundle)
        run = VideoRun(work, output, self.signer, provenance, seconds)
        output.unlink(missing_ok=True)
        started = time.perf_counter()
        made = run.make(LocalWorkers(FusionWorker(task, self.fuser)), show_nothing)
        return made, time.perf_counter() - started


@contextmanager
def show_nothing(stage: str, total: int, done: int) -> Iterator[Advance]:
    """Show no progress of a stage: the benchmark has a bar of its own."""
    del stage, total, done
    yield lambda _: None


def read_pictures(path: Path) -> Iterator[Image]:
    """Yield the frames of a film as they are searched."""
    reader = VideoReader(path)
    return (reader.see(frame, SEARCH_SIDE) for frame in reader.read_frames())

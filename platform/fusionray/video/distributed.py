"""Segments on the nodes of a Ray cluster: each is scanned, rendered and encoded where a worker is free."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusionray.errors import FusionRayError
from fusionray.ray_cluster.actor_pool import ActorBatch, actor_pool, unpack
from fusionray.ray_cluster.connection import require_cpus
from fusionray.storage.atomic_files import replace_file
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance
from fusionray.video.work import SegmentScan, VideoTask


class SegmentActor:
    """A Ray actor that works on segments, with video and model opened once; see `ray_cluster.actor_pool`."""

    def __init__(self, task: VideoTask) -> None:
        self.worker = task.open_worker()

    def __call__(self, batch: ActorBatch) -> Iterator[ActorBatch]:
        """Work on segments; an answer is the segment and its scan, or its film and seconds, or a FusionRayError.

        The error is a value: Ray would wrap one that is raised.
        """
        segment: Segment
        for segment, plan in unpack(batch):
            try:
                answer: Any = (segment, self.scan(segment) if plan is None else self.render(segment, plan))
            except FusionRayError as error:
                answer = error
            yield {"answer": np.array([pickle.dumps(answer)], dtype=object)}

    def scan(self, segment: Segment) -> SegmentScan:
        """Scan a segment."""
        return self.worker.scan(segment, ignore)

    def render(self, segment: Segment, plan: Any) -> tuple[bytes, dict[str, float]]:
        """Return the film of a segment: where the result is made, other nodes may have no way to write."""
        with tempfile.TemporaryDirectory(prefix="fusionray-video-") as folder:
            film = Path(folder) / f"segment{self.worker.task.suffix}"
            seconds = self.worker.render(segment, plan, film, ignore)
            return film.read_bytes(), seconds


class ClusterWorkers:
    """Actors on the nodes of the connected cluster; a lost node costs the segments that it worked on.

    Raises: ClusterUnavailable without a free CPU for each.
    """

    def __init__(self, task: VideoTask, *, number: int, cpus: float, gpus: float) -> None:
        # Workers that share a node would otherwise use all of its CPUs each.
        self.task = replace(task, threads=max(1, int(cpus)))
        self.number, self.cpus, self.gpus = number, cpus, gpus
        require_cpus(number, cpus)

    def scan(self, segments: Sequence[Segment], advance: Advance) -> Iterator[tuple[Segment, SegmentScan]]:
        """Scan segments."""
        for segment, scan in self.work([(segment, None) for segment in segments]):
            advance(segment.num_frames)
            yield segment, scan

    def render(
        self, parts: Sequence[tuple[Segment, Any]], path_of: Callable[[Segment], Path], advance: Advance
    ) -> Iterator[tuple[Segment, dict[str, float]]]:
        """Write the new frames of segments."""
        for segment, (film, seconds) in self.work(parts):
            replace_file(path_of(segment), film)
            advance(segment.num_frames)
            yield segment, seconds

    def work(self, items: Sequence[tuple[Segment, Any]]) -> Iterator[tuple[Segment, Any]]:
        """Yield the answers of the actors."""
        if not items:
            return
        with actor_pool(
            SegmentActor, self.task, items, size=self.number, num_cpus=self.cpus, num_gpus=self.gpus
        ) as answers:
            for batch in answers:
                for pickled in batch["answer"]:
                    answer = pickle.loads(pickled)  # noqa: S301 - written by the workers of this run
                    if isinstance(answer, FusionRayError):
                        raise answer
                    yield answer


def ignore(_: int) -> None:
    """Report no frames: those of a segment count when it is complete."""

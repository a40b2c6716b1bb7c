"""Batches across callers: crops of many requests for one generator, and pictures of many for the model of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusionray.faces.face import Image
from fusionray.runtime.batch_queue import BatchObserver, BatchQueue, Part
from fusionray.runtime.cores import Cores
from fusionray.runtime.crop_fuser import CropFuser, FusedCrops
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.tasks import BatchRunner, Runner


@dataclass(frozen=True)
class CropsToFuse:
    """Crops uint8 [N,S,S,3], each with its source [N,...]."""

    sources: FloatArray
    crops: NDArray[np.uint8]


class CropBatcher(BatchQueue[CropsToFuse, FusedCrops]):
    """Run a generator for many threads. A batch may hold faces of one picture and of several. Arguments: `BatchQueue`.

    `concurrent_fuser` computes batches while others are computed: on a CPU, all threads finish one batch soonest, but
    several batches with a few threads each give more throughput.
    """

    unit = "faces"

    def __init__(
        self,
        fuser: CropFuser,
        *,
        concurrent_fuser: CropFuser | None = None,
        num_streams: int = 1,
        max_waiting: int = 256,
        observer: BatchObserver | None = None,
        cores: Cores | None = None,
    ) -> None:
        super().__init__(
            max_batch=fuser.max_batch,
            num_streams=num_streams,
            max_waiting=max_waiting,
            observer=observer,
            cores=cores,
        )
        self.fuser = fuser
        self.concurrent_fuser = concurrent_fuser or fuser
        self.start()

    def submit(self, sources: FloatArray, crops: NDArray[np.uint8]) -> Future[tuple[FusedCrops, float]]:
        """Queue crops uint8 [N,S,S,3], each with its source [N,...]; the future gives results and seconds waited.

        Cancelling the future removes the crops that are not computed yet from the queue.

        Raises: Overloaded if too many crops wait, or after `close`.
        """
        return self.enqueue(CropsToFuse(sources, crops), len(crops))

    def fuse_at_once(self, sources: FloatArray, crops: NDArray[np.uint8]) -> FusedCrops | None:
        """Fuse crops on the calling thread, if none wait, one more batch may run, and they fit it; else None."""
        return self.run_at_once(CropsToFuse(sources, crops), len(crops))

    def run(self, batch: Sequence[Part[CropsToFuse, FusedCrops]]) -> list[FusedCrops]:
        """Fuse the crops of a batch."""
        sources = np.concatenate([part.call.work.sources[part.items] for part in batch])
        crops = np.concatenate([part.call.work.crops[part.items] for part in batch])
        fused = (self.fuser if self.is_only_batch else self.concurrent_fuser).fuse(sources, crops)
        ends = np.cumsum([part.stop - part.start for part in batch])[:-1]
        return [
            FusedCrops(crops, masks)
            for crops, masks in zip(np.split(fused.crops, ends), np.split(fused.masks, ends), strict=True)
        ]

    def join(self, parts: Sequence[FusedCrops]) -> FusedCrops:
        """Join the crops of one call."""
        return FusedCrops(
            np.concatenate([part.crops for part in parts]), np.concatenate([part.masks for part in parts])
        )


@dataclass(frozen=True)
class PicturesToRun:
    """The named pictures of one call of a runner, and its settings."""

    pictures: Mapping[str, Image]
    settings: Mapping[str, Any]


class PictureBatcher(BatchQueue[PicturesToRun, Image]):
    """Run the model of a task for many threads, each call one picture. Arguments: `BatchQueue`, `CropBatcher`.

    Calls share batches if the runner is a `BatchRunner` and gives them one key. Another runner makes one picture at a
    time, in one stream.
    """

    unit = "pictures"

    def __init__(
        self,
        runner: Runner,
        *,
        concurrent_runner: Runner | None = None,
        max_batch: int = 1,
        num_streams: int = 1,
        max_waiting: int = 256,
        observer: BatchObserver | None = None,
        cores: Cores | None = None,
    ) -> None:
        if not isinstance(runner, BatchRunner):
            num_streams = 1
        super().__init__(
            max_batch=max_batch,
            num_streams=num_streams,
            max_waiting=max_waiting,
            observer=observer,
            cores=cores,
        )
        self.runner = runner
        self.concurrent_runner = concurrent_runner or runner
        self.start()

    def submit(self, pictures: Mapping[str, Image], settings: Mapping[str, Any]) -> Future[tuple[Image, float]]:
        """Queue one call of the runner; the future gives its picture, and the seconds that it waited.

        Raises: Overloaded if too many pictures wait, or after `close`; KeyError if the key needs a picture that is
            missing.
        """
        key = self.runner.batch_key(pictures) if isinstance(self.runner, BatchRunner) else None
        return self.enqueue(PicturesToRun(pictures, settings), 1, key)

    def run(self, batch: Sequence[Part[PicturesToRun, Image]]) -> list[Image]:
        """Make the pictures of a batch."""
        runner = self.runner if self.is_only_batch else self.concurrent_runner
        calls = [part.call.work for part in batch]
        if isinstance(runner, BatchRunner) and len(calls) > 1:
            return runner.run_many([call.pictures for call in calls], [call.settings for call in calls])
        # The settings are those of the task; `Runner.run` names none.
        run: Any = runner.run
        return [run(call.pictures, **call.settings) for call in calls]

    def join(self, parts: Sequence[Image]) -> Image:
        """Refuse: a call is one picture, and never in parts."""
        raise AssertionError(f"a picture came in {len(parts)} parts")

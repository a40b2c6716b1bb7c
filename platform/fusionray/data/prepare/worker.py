"""What runs in a Ray actor: one chunk of pictures -> one shard file and a report beside it."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fusionray.config import Section
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.crop import FaceCropper, PictureCropper, RowMaker
from fusionray.data.prepare.plan import Chunk
from fusionray.data.prepare.source import Dropped, PictureSource, as_dropped
from fusionray.data.shards import GROUP_COLUMNS, ShardInfo, write_shard
from fusionray.errors import FusionRayError, ImageRejected
from fusionray.faces.align import load_template
from fusionray.faces.face import Detector
from fusionray.ray_cluster.actor_pool import Answer, unpack
from fusionray.storage import filesystem as storage

_PROGRESS_STEP = 64

News = Answer
"""A batch of one row: `pictures` tried since the last news, `fault` a pickled error of ours or no bytes."""


class ShardReport(Section):
    """How the work on one chunk went; once it lies beside the shard, the chunk is done."""

    fingerprint: str
    shard: ShardInfo | None
    identities: list[str]
    num_several_faces: int
    dropped: list[Dropped]


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """What all chunks of one run share; nobody is detected in pictures that are not taken for faces."""

    config: PrepareConfig
    source: PictureSource
    detector: Detector | None
    fingerprint: str


def build_cropper(job: Job) -> RowMaker:
    """Build what makes the rows of a job's task."""
    if job.detector is None:
        return PictureCropper(job.config)
    return FaceCropper(job.config, load_template(job.config.template), job.detector)


class ShardMaker:
    """Makes shards, one call a chunk; holds one detector for its life."""

    def __init__(self, job: Job) -> None:
        # An actor owns one core; libraries that start a thread for each core of the machine would fight over it.
        cv2.setNumThreads(1)
        if job.source.synthetic:
            import torch

            torch.set_num_threads(1)
        self._job = job
        self._cropper = build_cropper(job)

    def __call__(self, batch: Answer) -> Iterator[News]:
        """Work through chunks, telling every few pictures how many were tried.

        An error of ours travels as a value: raised here, Ray would wrap it and add advice of its own to its message.
        """
        chunk: Chunk
        for chunk in unpack(batch):
            try:
                for tried in self._make(chunk):
                    yield _news(tried)
            except FusionRayError as error:
                yield _news(0, fault=pickle.dumps(error))

    def _make(self, chunk: Chunk) -> Iterator[int]:
        job = self._job
        rows: list[dict[str, Any]] = []
        dropped: list[Dropped] = []
        num_several_faces = 0
        tried = told = 0
        for item in job.source.read(chunk.entries):
            tried += 1
            if isinstance(item, Dropped):
                dropped.append(item)
            else:
                try:
                    row, num_faces = self._cropper.build(item)
                    rows.append(row)
                    num_several_faces += num_faces > 1
                except ImageRejected as error:
                    dropped.append(as_dropped(item.entry, error))
            if tried - told >= _PROGRESS_STEP:
                yield tried - told
                told = tried
        output = job.config.output
        shard = write_shard(output, chunk.file, chunk.split, rows) if rows else None
        report = ShardReport(
            fingerprint=job.fingerprint,
            shard=shard,
            identities=sorted({row[GROUP_COLUMNS[job.config.task]] for row in rows}),
            num_several_faces=num_several_faces,
            dropped=dropped,
        )
        storage.write_atomic(storage.join(output, chunk.report_file), report.model_dump_json().encode())
        yield tried - told


def _news(pictures: int, fault: bytes = b"") -> News:
    return {"pictures": np.array([pictures]), "fault": np.array([fault], dtype=object)}

"""The Ray actor of prepare: turns the pictures of one planned shard into a shard file and a report."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from fusionray.config import Section
from fusionray.data.prepare.config import PrepareConfig
from fusionray.data.prepare.crop import FaceCropper, PictureCropper, RowBuilder
from fusionray.data.prepare.picture_entries import PictureEntries
from fusionray.data.prepare.picture_input import DroppedPicture, PictureInput, as_dropped
from fusionray.data.prepare.plan import PlannedShard
from fusionray.data.prepare.skin_region import SkinRegion
from fusionray.data.shards import GROUP_COLUMNS, ShardInfo, write_shard
from fusionray.errors import FusionRayError, ImageRejected
from fusionray.faces.align import load_template
from fusionray.faces.face import Detector
from fusionray.ray_cluster.actor_pool import ActorBatch, unpack
from fusionray.storage import filesystem as storage

_PROGRESS_STEP = 64

ProgressRow = ActorBatch
"""A batch of one row: `pictures` read since the last row; `error`, a pickled FusionRayError or empty."""


class ShardReport(Section):
    """The result of one planned shard. The report is written after the shard: if it exists, the shard is finished."""

    fingerprint: str
    shard: ShardInfo | None
    identities: list[str]
    dropped: list[DroppedPicture]


@dataclass(frozen=True, eq=False, slots=True)
class PrepareContext:
    """What all shards of a run share. `detector` is None for the task `pictures`."""

    config: PrepareConfig
    input: PictureInput
    entries: PictureEntries
    detector: Detector | None
    fingerprint: str


def build_cropper(context: PrepareContext) -> RowBuilder:
    """Build the cropper of the task."""
    if context.detector is None:
        return PictureCropper(context.config)
    config = context.config
    skin = None if config.parser is None else SkinRegion(config.parser)
    return FaceCropper(config, load_template(config.template), context.detector, skin)


class ShardWorker:
    """Makes one shard per call; keeps one detector."""

    def __init__(self, context: PrepareContext) -> None:
        # An actor has one core: more threads would only compete for it.
        cv2.setNumThreads(1)
        if context.input.synthetic:
            import torch

            torch.set_num_threads(1)
        self._context = context
        self._cropper = build_cropper(context)

    def __call__(self, batch: ActorBatch) -> Iterator[ProgressRow]:
        """Make the planned shards of a batch; yield the progress every few pictures.

        A FusionRayError is yielded, not raised: Ray would wrap it and change its message.
        """
        planned: PlannedShard
        for planned in unpack(batch):
            try:
                for num_read in self._make(planned):
                    yield _progress_row(num_read)
            except FusionRayError as error:
                yield _progress_row(0, error=pickle.dumps(error))

    def _make(self, planned: PlannedShard) -> Iterator[int]:
        context = self._context
        rows: list[dict[str, Any]] = []
        dropped: list[DroppedPicture] = []
        num_read = num_reported = 0
        for item in context.input.read(context.entries.take(planned.rows)):
            num_read += 1
            if isinstance(item, DroppedPicture):
                dropped.append(item)
            else:
                try:
                    rows.append(self._cropper.build(item))
                except ImageRejected as error:
                    dropped.append(as_dropped(item.entry, error))
            if num_read - num_reported >= _PROGRESS_STEP:
                yield num_read - num_reported
                num_reported = num_read
        output = context.config.output
        shard = write_shard(output, planned.file, planned.split, rows) if rows else None
        report = ShardReport(
            fingerprint=context.fingerprint,
            shard=shard,
            identities=sorted({row[GROUP_COLUMNS[context.config.task]] for row in rows}),
            dropped=dropped,
        )
        storage.write_atomic(storage.join(output, planned.report_file), report.model_dump_json().encode())
        yield num_read - num_reported


def _progress_row(pictures: int, error: bytes = b"") -> ProgressRow:
    return {"pictures": np.array([pictures]), "error": np.array([error], dtype=object)}

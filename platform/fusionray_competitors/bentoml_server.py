"""BentoML with batches: one service processes pictures in threads, another one batches the faces of many requests.

Source: docs.bentoml.com, "Adaptive batching" and "Model composition". Adaptive batching needs one array of rows. An
input row is the source followed by the crop; an output row is the fused crop followed by the mask.
"""

from __future__ import annotations

import asyncio

import bentoml
import numpy as np
from fastapi import FastAPI, Response, UploadFile

from fusionray.runtime.crop_fuser import FusedCrops
from fusionray_competitors.config import read_config
from fusionray_competitors.pipeline import Pipeline

SETTINGS = read_config()
LONGEST_SECONDS = 300
app = FastAPI()


@bentoml.service(workers=SETTINGS.workers, traffic={"timeout": LONGEST_SECONDS})
class BentoGenerator:
    """The generator of the bundle."""

    def __init__(self) -> None:
        self.fuser = Pipeline(SETTINGS).fuser.crop_fuser
        (self.length,) = self.fuser.source_shape

    @bentoml.api(  # type: ignore[untyped-decorator]
        batchable=True, max_batch_size=SETTINGS.max_batch, max_latency_ms=1000 * LONGEST_SECONDS
    )
    def fuse(self, rows: np.ndarray) -> np.ndarray:
        """Fuse rows of source and crop."""
        length, side = self.length, self.fuser.size
        crops = rows[:, length:].astype(np.uint8).reshape(-1, side, side, 3)
        fused = self.fuser.fuse(rows[:, :length], crops)
        parts = (fused.crops.astype(np.float32), fused.masks)
        return np.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)


@bentoml.service(workers=SETTINGS.workers, traffic={"timeout": LONGEST_SECONDS})
@bentoml.asgi_app(app)
class Pictures:
    """Everything before and after the generator."""

    generator = bentoml.depends(BentoGenerator)

    def __init__(self) -> None:
        self.pipeline = Pipeline(SETTINGS)

    @app.post("/v1/fuse")
    async def fuse(self, source: UploadFile, target: UploadFile) -> Response:
        """Make one picture."""
        pipeline, side = self.pipeline, self.pipeline.fuser.crop_fuser.size
        prepared = await asyncio.to_thread(pipeline.prepare, await source.read(), await target.read())
        row = np.concatenate([prepared.source, prepared.cut.crops.astype(np.float32).ravel()])
        (found,) = await self.generator.to_async.fuse(row[None])
        crop, mask = found[: -side * side].astype(np.uint8), found[-side * side :]
        fused = FusedCrops(crop.reshape(1, side, side, 3), mask.reshape(1, side, side))
        data = await asyncio.to_thread(pipeline.finish, prepared, fused)
        return Response(data, media_type=pipeline.media_type)

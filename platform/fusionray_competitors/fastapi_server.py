"""Plain FastAPI on uvicorn: a plain `def` route, which FastAPI runs in its threads, and worker processes.

Source: fastapi.tiangolo.com, "Concurrency and async / await" and "Server Workers".
"""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI, Response, UploadFile

from fusionray_competitors.config import read_config
from fusionray_competitors.pipeline import Pipeline


def build() -> FastAPI:
    """Build the application of one worker process."""
    pipeline = Pipeline(read_config())
    app = FastAPI()

    @app.post("/v1/fuse")
    def fuse(source: UploadFile, target: UploadFile) -> Response:
        data = pipeline.answer(source.file.read(), target.file.read())
        return Response(data, media_type=pipeline.media_type)

    return app


if __name__ == "__main__":
    settings = read_config()
    uvicorn.run(
        "fusionray_competitors.fastapi_server:build",
        factory=True,
        host="127.0.0.1",
        port=settings.port,
        workers=settings.workers,
        log_level="warning",
    )

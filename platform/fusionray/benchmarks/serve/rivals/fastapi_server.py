"""Plain FastAPI on uvicorn: a plain `def` route, which FastAPI runs in its threads, and worker processes.

Source: fastapi.tiangolo.com, "Concurrency and async / await" and "Server Workers".
"""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI, Response, UploadFile

from fusionray.benchmarks.serve.rivals.pipeline import Pipeline
from fusionray.benchmarks.serve.rivals.settings import read_settings


def build() -> FastAPI:
    """Build the application of one worker process."""
    pipeline = Pipeline(read_settings())
    app = FastAPI()

    @app.post("/v1/fuse")
    def fuse(source: UploadFile, target: UploadFile) -> Response:
        data = pipeline.answer(source.file.read(), target.file.read())
        return Response(data, media_type=pipeline.media_type)

    return app


if __name__ == "__main__":
    settings = read_settings()
    uvicorn.run(
        "fusionray.benchmarks.serve.rivals.fastapi_server:build",
        factory=True,
        host="127.0.0.1",
        port=settings.port,
        workers=settings.workers,
        log_level="warning",
    )

"""The service with a stub in place of the models: the benchmark measures the path of a request up to them.

`python -m fusionray.benchmarks.serve.stub_service BUNDLE PORT` serves until it is terminated. The answer to a request
is its target.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from ray import serve

from fusionray.bundle.description import FACE_FUSION
from fusionray.environment import apply_defaults
from fusionray.ray_cluster.connection import cluster, require_cluster
from fusionray.serving.application import APP_NAME, UNLIMITED_REQUESTS, deploy, wait_until_running
from fusionray.serving.config import DEFAULT_HOST, load_service
from fusionray.serving.pipeline.ingress import Ingress
from fusionray.serving.schema import FuseReply, FuseTask, KeepTask, ModelCard, ModelVersion, Problem
from fusionray.serving.tasks.face_fusion import FaceFusion

STUB_SECONDS = 0.001
STUB = "stub"
NO_FACE = ((0.0, 0.0, 1.0, 1.0),)


class StubPictures:
    """Take a millisecond for every picture and leave the CPU free, as a GPU would."""

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Return a card; there is nothing to load."""
        return ModelCard(version.name, STUB, 0, STUB, version.bundle, STUB, STUB, (STUB,), 0, STUB)

    async def fuse(self, task: FuseTask) -> FuseReply:
        """Return the target."""
        await asyncio.sleep(STUB_SECONDS)
        timing = {"total": 1000 * STUB_SECONDS}
        return FuseReply(
            task.target,
            "image/jpeg",
            STUB,
            task.version.bundle,
            test_key=True,
            timing=timing,
            boxes=NO_FACE,
            source_sha256="",
        )

    async def keep_identity(self, task: KeepTask) -> Problem:
        """Refuse: the stub stores nothing."""
        del task
        return Problem(501, STUB, "Nothing is kept", "this is a stub")


class StubIngress(Ingress):
    """The routes, middleware and metrics of the service in front of the stub."""

    def __init__(self, *settings: object) -> None:
        super().__init__(*settings)  # type: ignore[arg-type]
        task = self.tasks[FACE_FUSION]
        assert isinstance(task, FaceFusion)
        task.pictures = task.service.pictures = StubPictures()


def main(bundle: str, port: int) -> None:
    """Serve the stub on loopback until the process is terminated."""
    apply_defaults()
    config = load_service(None, [f"bundle={bundle}"]).config
    with cluster():
        require_cluster()
        serve.start(http_options={"host": DEFAULT_HOST, "port": port})
        ingress = deploy(serve.ingress()(StubIngress), "Ingress", config.ingress, UNLIMITED_REQUESTS)
        target = serve.RunTarget(target=ingress.bind(config, None), name=APP_NAME, route_prefix="/")
        serve.run_many([target], wait_for_applications_running=False)
        wait_until_running(APP_NAME, config.start_timeout_seconds)
        threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

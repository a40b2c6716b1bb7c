"""The service with a stub in place of the models: the benchmark measures the path of a request up to them.

`python -m fusionray.benchmarks.serve.stub_service BUNDLE PORT [KEY=VALUE ...]` serves until it is terminated, with the
settings of `fusionray serve`. The answer to a request is its target; its bundle is the process of the replica.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading

from ray import serve

from fusionray.bundle.description import FACE_FUSION
from fusionray.environment import apply_defaults
from fusionray.ray_cluster.connection import cluster, require_cluster
from fusionray.serving.application import APP_NAME, UNLIMITED_REQUESTS, deploy, wait_until_running
from fusionray.serving.config import DEFAULT_HOST, ServeConfig, load_service
from fusionray.serving.ingress import Ingress
from fusionray.serving.model_cards import ModelCard, ModelVersion
from fusionray.serving.replicas import list_nodes, plan_replicas
from fusionray.serving.schema import FindTask, FuseReply, FuseTask, KeepTask, Problem
from fusionray.serving.tasks.face_fusion import FaceFusion

STUB = "stub"
NO_FACE = ((0.0, 0.0, 1.0, 1.0),)


class StubPictures:
    """Take some milliseconds for every picture and leave the CPU free, as a GPU would.

    If `in_turn`, a picture waits until the one before it is made; otherwise a stub makes any number at the same time.
    """

    def __init__(self, milliseconds: float, *, in_turn: bool) -> None:
        self.milliseconds = milliseconds
        self.places = asyncio.Semaphore(1 if in_turn else UNLIMITED_REQUESTS)

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Return a card; there is nothing to load."""
        return ModelCard(version.name, STUB, 0, STUB, version.bundle, STUB, STUB, (STUB,), 0, STUB)

    async def fuse(self, task: FuseTask) -> FuseReply:
        """Return the target."""
        async with self.places:
            await asyncio.sleep(self.milliseconds / 1000)
        timing = {"total": self.milliseconds}
        return FuseReply(
            task.target,
            "image/jpeg",
            STUB,
            str(os.getpid()),
            test_key=True,
            timing=timing,
            boxes=NO_FACE,
            sources_sha256=("",),
        )

    async def find_faces(self, task: FindTask) -> Problem:
        """Refuse: the stub has no detector."""
        del task
        return Problem(501, STUB, "Nothing is found", "this is a stub")

    async def keep_identity(self, task: KeepTask) -> Problem:
        """Refuse: the stub stores nothing."""
        del task
        return Problem(501, STUB, "Nothing is kept", "this is a stub")


class StubIngress(Ingress):
    """The routes, middleware and metrics of the service in front of the stub."""

    def __init__(self, config: ServeConfig, milliseconds: float, in_turn: bool) -> None:
        super().__init__(config, None)
        task = self.models.tasks[FACE_FUSION]
        assert isinstance(task, FaceFusion)
        task.pictures = task.service.pictures = StubPictures(milliseconds, in_turn=in_turn)


def main() -> None:
    """Serve the stub on loopback until the process is terminated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("port", type=int)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--milliseconds", type=float, default=1.0)
    parser.add_argument("--in-turn", action="store_true")
    options = parser.parse_intermixed_args()
    apply_defaults()
    config = load_service(None, [f"bundle={options.bundle}", *options.overrides]).config
    with cluster():
        require_cluster()
        serve.start(http_options={"host": DEFAULT_HOST, "port": options.port})
        config = plan_replicas(config, list_nodes())
        ingress = deploy(serve.ingress()(StubIngress), "Ingress", config.ingress, UNLIMITED_REQUESTS)
        application = ingress.bind(config, options.milliseconds, options.in_turn)
        target = serve.RunTarget(target=application, name=APP_NAME, route_prefix="/")
        serve.run_many([target], wait_for_applications_running=False)
        wait_until_running(APP_NAME, config.start_timeout_seconds)
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""What takes requests: it holds the routes, knows which models answer, and lets pictures be made."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from fusionray.errors import BundleInvalid, FusionRayError, Overloaded
from serve.api import build_api
from serve.faces_stage import FacesStage, PictureService, RemotePictures
from serve.fuser_stage import CropService, FuserStage, RemoteFuser
from serve.guards import AsgiApp, BodyGuard, CrowdGuard, KeyGuard, check_exposure
from serve.measures import RequestMeasures
from serve.schema import FuseOptions, FuseReply, FuseTask, ModelCard, ModelVersion, Problem, unavailable
from serve.settings import ServeConfig
from serve.versions import UnknownModel, VersionBook

logger = logging.getLogger("ray.serve")

HEALTH_TIMEOUT_SECONDS = 2.0


class Ingress:
    """Take requests. Ray Serve calls `__serve_build_asgi_app__` once per replica, and asks for its health.

    `fuser` and `faces` are the parts that run in replicas of their own; what is missing runs in here.
    """

    def __init__(
        self,
        config: ServeConfig,
        key_digest: bytes | None,
        faces: DeploymentHandle | None = None,
        fuser: DeploymentHandle | None = None,
    ) -> None:
        check_exposure(find_address()[0], key_digest)
        self.config = config
        self.key_digest = key_digest
        self.book = VersionBook(config)
        self.pictures = build_pictures(config, faces, fuser)
        self.measures = RequestMeasures()
        self.cards: dict[str, ModelCard] = {}
        self.watch: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> AsgiApp:
        limits = self.config.limits
        guarded = BodyGuard(build_api(self), limits.max_body_bytes, limits.body_timeout_seconds)
        return KeyGuard(CrowdGuard(guarded, limits.max_requests, self.measures), self.key_digest)

    async def check_health(self) -> None:
        """Load what is to be served; a replica takes requests only after that. Ray Serve asks again and again.

        Raises: BundleInvalid, ProviderUnavailable; the replica counts as sick then.
        """
        if self.watch is None:
            for version in self.book.versions():
                await self.prepare(version)
            self.watch = asyncio.create_task(self.follow())

    async def prepare(self, version: ModelVersion) -> None:
        card = await self.pictures.prepare(version)
        self.cards[version.id] = replace(card, default=version.name == self.book.default)

    async def follow(self) -> None:
        """Notice aliases that moved and bundles that were replaced; they answer once they are loaded and warm."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.alias_poll_seconds)
            try:
                changed = await loop.run_in_executor(None, self.book.look)
                for found in changed.values():
                    for version in (found.main, found.canary):
                        if version is not None:
                            await self.prepare(version)
            except (FusionRayError, OSError, RayActorError) as error:
                # What answers now goes on answering.
                logger.warning("models: %s; the versions in use stay", error)
                continue
            for found in changed.values():
                logger.warning("models: %s answers from now on", found.main.id)
            self.book.adopt(changed)

    async def fuse(self, source: bytes, target: bytes, options: FuseOptions, model: str | None) -> FuseReply | Problem:
        """Let a picture be made; overload, lost replicas and lateness become problems."""
        timeout = self.config.limits.request_timeout_seconds
        try:
            version = self.book.choose(model)
        except UnknownModel as error:
            return self.end(Problem(404, "unknown_model", "No such model", str(error)), "")
        task = FuseTask(source, target, version, options, time.time() + timeout)
        try:
            return self.end(await asyncio.wait_for(self.pictures.fuse(task), timeout), version.name)
        except (BackPressureError, Overloaded):
            problem = unavailable("busy", "too many requests are waiting")
        except (RayActorError, DeploymentUnavailableError):
            problem = unavailable("model_lost", "the model was lost while it worked on this request and is coming back")
        except BundleInvalid as error:
            problem = unavailable("not_ready", f"the model cannot be loaded now ({error})")
        except TimeoutError:
            detail = f"no answer within {timeout:g} seconds; try again later"
            problem = Problem(504, "timeout", "Took too long", detail)
        return self.end(problem, version.name)

    def end(self, reply: FuseReply | Problem, model: str) -> FuseReply | Problem:
        """Count how a request ended."""
        if isinstance(reply, Problem):
            self.measures.count_end(reply.status, reply.reason, model)
        else:
            self.measures.count_end(200, "", model)
            self.measures.count_stages(reply.timing, model)
            self.measures.faces.inc(len(reply.boxes), {"model": model})
        return reply

    def list_models(self) -> list[ModelCard]:
        """Describe what is served, the default first."""
        return [self.cards[version.id] for version in self.book.versions() if version.id in self.cards]

    async def find_model(self) -> Problem | None:
        """Ask the part that holds the default model for it: a problem unless it is loaded and answers."""
        version = self.book.choose(None)
        try:
            await asyncio.wait_for(self.pictures.prepare(version), HEALTH_TIMEOUT_SECONDS)
        except (TimeoutError, RayActorError, DeploymentUnavailableError, BackPressureError, FusionRayError):
            return unavailable("not_ready", "the model is not loaded yet, or does not answer")
        return None


def build_pictures(
    config: ServeConfig, faces: DeploymentHandle | None, fuser: DeploymentHandle | None
) -> PictureService:
    """Put the parts together: those apart behind their handles, the others in this replica."""
    if faces is not None:
        return RemotePictures(faces)
    crops: CropService = RemoteFuser(fuser) if fuser is not None else FuserStage(config)
    return FacesStage(config, crops)


class FacesReplica(FacesStage):
    """The faces stage as a deployment of its own."""

    def __init__(self, config: ServeConfig, fuser: DeploymentHandle | None = None) -> None:
        super().__init__(config, RemoteFuser(fuser) if fuser is not None else FuserStage(config))


def find_address() -> tuple[str, int]:
    """Ask Ray Serve on which host and port it listens: its own settings, not the application's, decide that."""
    from ray.serve.context import _get_global_client

    options = _get_global_client().http_config
    return str(options.host), int(options.port)

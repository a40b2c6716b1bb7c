"""Who makes pictures: the face stage in this replica, or in a deployment of its own."""

from __future__ import annotations

from typing import Protocol

from fusionray.serving.model_cards import ModelCard, ModelVersion
from fusionray.serving.pipeline.model_cache import DeploymentClient
from fusionray.serving.schema import FacesReply, FindTask, FuseReply, FuseTask, IdentityReply, KeepTask, Problem


class PictureService(Protocol):
    """Makes pictures, in this replica or in another one."""

    async def prepare(self, version: ModelVersion) -> ModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        ...

    async def fuse(self, task: FuseTask) -> FuseReply | Problem:
        """Make one picture. A faulty picture is returned as a problem, not raised."""
        ...

    async def find_faces(self, task: FindTask) -> FacesReply | Problem:
        """Find the faces of a picture."""
        ...

    async def keep_identity(self, task: KeepTask) -> IdentityReply | Problem:
        """Store the largest face of a picture under a handle."""
        ...


class RemotePictures(DeploymentClient):
    """The face stage in a deployment of its own."""

    async def fuse(self, task: FuseTask) -> FuseReply | Problem:
        """Make one picture in one of the replicas.

        Raises: Overloaded, TimeoutError; RayActorError if the replica dies in the meantime.
        """
        reply: FuseReply | Problem = await self.ask(task.version, "fuse", task)
        return reply

    async def find_faces(self, task: FindTask) -> FacesReply | Problem:
        """Find the faces of a picture in one of the replicas.

        Raises: RayActorError if the replica dies in the meantime.
        """
        reply: FacesReply | Problem = await self.ask(task.version, "find_faces", task)
        return reply

    async def keep_identity(self, task: KeepTask) -> IdentityReply | Problem:
        """Store the largest face of a picture under a handle.

        Raises: ConsentRefused, StoreFull; RayActorError if the replica dies in the meantime.
        """
        reply: IdentityReply | Problem = await self.ask(task.version, "keep_identity", task)
        return reply

"""The interface of a served task, as the ingress replica uses it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fusionray.serving.model_cards import AnyModelCard, ModelVersion


class ServedTask(Protocol):
    """A task of the served bundles: its models and its background work; `http/task_routes.py` has its routes."""

    async def prepare(self, version: ModelVersion) -> AnyModelCard:
        """Load a version, warm it up, and describe what it runs on."""
        ...

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the background work; called once, after the models are loaded."""
        ...

    def check(self) -> None:
        """Check that the background work still runs.

        Raises: RuntimeError.
        """
        ...

    def sweep(self) -> None:
        """Remove what has expired, on the calling thread."""
        ...

    def drain(self) -> None:
        """Let other replicas take unfinished work; called once, before the replica stops."""
        ...

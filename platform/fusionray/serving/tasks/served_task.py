"""What every task brings to a replica that takes requests."""

from __future__ import annotations

import asyncio
from typing import Protocol

from fastapi import FastAPI

from fusionray.serving.schema import AnyModelCard, ModelVersion


class ServedTask(Protocol):
    """A task that bundles in use have: its models, its routes, and what runs in the background for it."""

    async def prepare(self, version: ModelVersion) -> AnyModelCard:
        """Load a version, warm it up, and tell what it runs on."""
        ...

    def add_routes(self, api: FastAPI) -> None:
        """Add the routes by which clients ask for it."""
        ...

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin what runs in the background; called once, after the models are loaded."""
        ...

    def check(self) -> None:
        """Find out whether what runs in the background still does.

        Raises: RuntimeError.
        """
        ...

    def sweep(self) -> None:
        """Clear away what has expired, on the calling thread."""
        ...

    def drain(self) -> None:
        """Give unfinished work to other replicas; called once, before the replica ends."""
        ...

"""The task of an ingress replica that follows its models goes on whatever a round of it meets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fusionray.serving.ingress import Ingress


class Models:
    """Models of which every update breaks in another way, but the last."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.tasks: dict[str, Any] = {}
        self.updated = asyncio.Event()

    async def update(self) -> list[Any]:
        """Raise the next error."""
        if self.errors:
            raise self.errors.pop(0)
        self.updated.set()
        return []


def build(models: Models) -> Ingress:
    ingress = Ingress.__new__(Ingress)
    ingress.config = SimpleNamespace(alias_poll_seconds=0.01)  # type: ignore[assignment]
    ingress.keys = SimpleNamespace(keys=[])  # type: ignore[assignment]
    ingress.expiry = SimpleNamespace(set_keys=lambda *_: None)  # type: ignore[assignment]
    ingress.generators = SimpleNamespace(check=lambda: None)  # type: ignore[assignment]
    ingress.models, ingress.jobs = models, None  # type: ignore[assignment]
    return ingress


def test_a_version_that_breaks_does_not_end_the_look_out_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        models = Models(OSError("away"), RuntimeError("the warm-up broke"), KeyError("odd"))
        ingress = build(models)
        ingress.follower = asyncio.create_task(ingress.follow())
        await asyncio.wait_for(models.updated.wait(), 20)
        await ingress.check_health()
        ingress.follower.cancel()
        await asyncio.wait([ingress.follower])
        with pytest.raises(RuntimeError, match="follows the models has ended"):
            await ingress.check_health()

    asyncio.run(follow())
    assert "the warm-up broke" in caplog.text

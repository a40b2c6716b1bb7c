from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ray import serve

from fusionray.serving.config import ServeConfig
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.model_cache import DeploymentClient
from tests.support.waiting import wait_for


class Slow:
    """Works until it is cancelled, and leaves a file then."""

    async def work(self, began: Path, cancelled: Path) -> None:
        began.touch()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.touch()
            raise


@pytest.mark.slow(seconds=15)
@pytest.mark.usefixtures("no_service")
def test_work_of_a_caller_that_gave_up_is_cancelled_in_its_replica(port: int, tmp_path: Path) -> None:
    serve.start(http_options={"port": port})
    slow = serve.deployment(Slow, ray_actor_options={"num_cpus": 0.1})
    handle = serve.run(slow.bind(), name="slow", route_prefix="/slow")
    client = DeploymentClient(handle, ServeConfig.model_validate({"bundle": "b"}))
    began, cancelled = tmp_path / "began", tmp_path / "cancelled"

    async def give_up() -> None:
        version = ModelVersion("default", "b", "b")
        work = asyncio.create_task(client.ask(version, "work", began, cancelled))
        while not began.exists():
            await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work, 0.1)

    asyncio.run(give_up())
    wait_for(cancelled.exists, seconds=10)

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from ray import serve

from fusionray.serving.config import ServeConfig
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.model_cache import DeploymentClient, ModelCache
from tests.support.waiting import wait_for


def test_ray_serve_is_asked_again_only_after_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    loads = asyncio.Event()

    async def held(version_id: str) -> str:
        asked.append(version_id)
        if version_id.startswith("slow"):
            await loads.wait()
        return f"held {version_id}"

    monkeypatch.setattr(serve, "multiplexed", lambda **_: lambda _: held)
    first, second, slow = (ModelVersion(name, "b", "b") for name in ("first", "second", "slow"))
    cache: ModelCache[str] = ModelCache(lambda version: version.id, capacity=2)

    async def check() -> None:
        assert [await cache.get(each) for each in (first, first, second, second, first)] == [
            f"held {each.id}" for each in (first, first, second, second, first)
        ]
        assert asked == [first.id, second.id, first.id]
        # A version that loads may take the place of any other one.
        loading = asyncio.create_task(cache.get(slow))
        await asyncio.sleep(0)
        assert [await cache.get(first) for _ in range(2)] == [f"held {first.id}"] * 2
        assert asked[3:] == [slow.id, first.id, first.id]
        loads.set()
        assert await loading == f"held {slow.id}"
        await cache.get(slow)
        assert asked[6:] == []

    asyncio.run(check())


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

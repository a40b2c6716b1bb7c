from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from ray import serve

from fusionray.errors import BundleInvalid
from fusionray.serving.config import ServeConfig
from fusionray.serving.model_cards import ModelVersion
from fusionray.serving.pipeline.model_cache import DeploymentClient, ModelCache, build_announcer
from tests.support.waiting import wait_for

FIRST, SECOND, THIRD = (ModelVersion(name, "b", "b") for name in ("first", "second", "third"))


def test_the_least_recently_used_model_is_unloaded_first_and_none_is_loaded_twice() -> None:
    loaded: list[str] = []
    unloaded: list[str] = []

    def load(version: ModelVersion) -> str:
        assert threading.current_thread() is not threading.main_thread()
        loaded.append(version.name)
        return f"held {version.name}"

    def unload(held: str) -> None:
        assert threading.current_thread() is not threading.main_thread()
        unloaded.append(held)

    async def check() -> None:
        cache = ModelCache(load, 2, unload)
        assert await asyncio.gather(*[cache.get(FIRST) for _ in range(3)]) == ["held first"] * 3
        assert [await cache.get(each) for each in (SECOND, FIRST, SECOND, FIRST)] == ["held second", "held first"] * 2
        assert (loaded, unloaded) == (["first", "second"], [])
        assert await cache.get(THIRD) == "held third"
        assert await cache.get(FIRST) == "held first"
        assert (loaded, unloaded) == (["first", "second", "third"], ["held second"])
        assert await cache.get(SECOND) == "held second"
        assert (loaded[3:], unloaded[1:]) == (["second"], ["held third"])

    asyncio.run(check())


def test_one_model_is_loaded_at_a_time_while_another_one_answers() -> None:
    may_load = threading.Event()
    begun: list[str] = []

    def load(version: ModelVersion) -> str:
        begun.append(version.name)
        if version is not FIRST:
            assert may_load.wait(20)
        return version.name

    async def check() -> None:
        cache = ModelCache(load, 3)
        await cache.get(FIRST)
        others = [asyncio.create_task(cache.get(each)) for each in (SECOND, THIRD)]
        while len(begun) < 2:
            await asyncio.sleep(0.001)
        assert await cache.get(FIRST) == "first"
        await asyncio.sleep(0.05)
        assert begun == ["first", "second"]
        may_load.set()
        assert await asyncio.gather(*others) == ["second", "third"]

    asyncio.run(check())


def test_a_model_that_fails_is_tried_again() -> None:
    faults = [BundleInvalid("damaged")]

    def load(version: ModelVersion) -> str:
        if faults:
            raise faults.pop()
        return version.name

    async def check() -> None:
        cache = ModelCache(load, 1)
        with pytest.raises(BundleInvalid, match="damaged"):
            await cache.get(FIRST)
        assert await cache.get(FIRST) == "first"

    asyncio.run(check())


def test_ray_serve_hears_of_models_only_where_requests_are_routed_by_them() -> None:
    heard: list[str] = []

    async def announce(model_id: str) -> None:
        heard.append(model_id)

    async def check() -> None:
        cache = ModelCache(lambda version: version.name, 1, announce=announce)
        assert [await cache.get(each) for each in (FIRST, FIRST, SECOND)] == ["first", "first", "second"]

    asyncio.run(check())
    assert heard == [FIRST.id, FIRST.id, SECOND.id]
    models = [{"name": name, "bundle": name} for name in ("a", "b")]
    fits, does_not = (ServeConfig.model_validate({"models": models, "models_per_replica": each}) for each in (2, 1))
    assert build_announcer(fits) is None
    assert build_announcer(does_not) is not None


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

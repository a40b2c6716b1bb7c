from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fusionray.errors import QuotaExceeded
from fusionray.serving.auth.key_file import ApiKey
from fusionray.serving.auth.rate_limit_client import RateLimitClient
from fusionray.serving.auth.rate_limits import (
    BURST_SECONDS,
    LEASE_SECONDS,
    Bucket,
    RateLimiter,
    TokenLease,
)
from tests.serving.identities.test_store import Clock

MIDNIGHT = 86_400.0 * 20_000


class World:
    """A rate limiter, some replicas that call it, and one clock for all."""

    def __init__(self, num_replicas: int = 1, start: float = MIDNIGHT) -> None:
        self.clock = Clock(start)
        self.limiter = RateLimiter(clock=self.clock, wall_clock=self.clock)
        self.num_calls = 0
        self.replicas = [RateLimitClient(self.call, self.clock) for _ in range(num_replicas)]

    async def call(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        self.num_calls += 1
        lease = self.limiter.lease(bucket, needed, wanted)
        await asyncio.sleep(0)
        return lease

    async def ask(self, replica: int, key: ApiKey, num_images: int = 0) -> bool:
        try:
            await self.replicas[replica].spend(key, num_images)
        except QuotaExceeded:
            return False
        return True


def make_key(name: str = "ann", **limits: int) -> ApiKey:
    return ApiKey.model_validate({"name": name, "sha256": "0" * 64, **limits})


def test_a_key_without_limits_never_calls_the_limiter() -> None:
    world = World()
    assert all(asyncio.run(world.ask(0, make_key(), 5)) for _ in range(1000))
    assert world.num_calls == 0


@pytest.mark.parametrize("limit", [1, 6, 60, 6000])
def test_all_replicas_together_stay_within_the_rate_in_every_window(limit: int) -> None:
    world, key, rng = World(7), make_key(requests_per_minute=limit), random.Random(limit)
    step = 60.0 / limit / 9

    async def run() -> list[float]:
        passed = []
        for _ in range(4000):
            world.clock.now += rng.expovariate(1 / step)
            if await world.ask(rng.randrange(7), key):
                passed.append(world.clock.now)
        return passed

    passed = asyncio.run(run())
    rate = limit / 60.0
    for first in range(0, len(passed), 7):
        for last in range(first, len(passed), 5):
            window = passed[last] - passed[first] + LEASE_SECONDS
            assert last - first + 1 <= max(1.0, rate * BURST_SECONDS) + rate * window + 1
    # Few leased tokens stay unspent in the replicas.
    assert len(passed) > 0.8 * rate * (passed[-1] - passed[0])


def test_at_full_speed_few_requests_call_the_limiter() -> None:
    world, key = World(2), make_key(requests_per_minute=60_000)

    async def run() -> int:
        passed = 0
        for number in range(9000):
            world.clock.now += 0.001
            passed += await world.ask(number % 2, key)
        return passed

    assert asyncio.run(run()) == 9000
    assert world.num_calls < 300


def test_images_of_a_day_are_never_exceeded_and_reset_at_midnight() -> None:
    world, key, rng = World(5, MIDNIGHT + 80_000), make_key(images_per_day=500), random.Random(3)

    async def spend_day() -> int:
        made = 0
        for _ in range(400):
            world.clock.now += 0.2
            wanted = rng.randrange(1, 9)
            replicas = rng.sample(range(5), 3)
            passed = await asyncio.gather(*(world.ask(replica, key, wanted) for replica in replicas))
            made += wanted * sum(passed)
        return made

    async def run() -> tuple[int, int]:
        first = await spend_day()
        world.clock.now = MIDNIGHT + 86_400.0
        return first, await spend_day()

    for made in asyncio.run(run()):
        assert 400 <= made <= 500


def test_the_last_image_is_granted_and_then_the_refusal_states_when_to_retry() -> None:
    world, key = World(start=MIDNIGHT + 86_000), make_key(images_per_day=10)

    async def run() -> QuotaExceeded:
        for _ in range(10):
            await world.replicas[0].spend(key, 1)
        with pytest.raises(QuotaExceeded) as caught:
            await world.replicas[0].spend(key, 1)
        return caught.value

    error = asyncio.run(run())
    assert error.quota == "images_per_day"
    assert error.retry_after_seconds == pytest.approx(400)
    assert str(error) == "the key ann may ask 10 images a day: try again in 400 s"


def test_a_client_that_waits_for_retry_after_is_allowed() -> None:
    world, key = World(), make_key(requests_per_minute=7)

    async def run() -> None:
        for _ in range(20):
            while await world.ask(0, key):
                pass
            with pytest.raises(QuotaExceeded) as caught:
                await world.replicas[0].spend(key, 0)
            world.clock.now += caught.value.retry_after_seconds * 0.98
            assert not await world.ask(0, key)
            world.clock.now += caught.value.retry_after_seconds * 0.02 + 0.01
            assert await world.ask(0, key)

    asyncio.run(run())


def test_a_client_in_a_loop_costs_the_limiter_nothing() -> None:
    world, key = World(), make_key(requests_per_minute=6)

    async def run() -> None:
        for _ in range(1000):
            await world.ask(0, key)

    asyncio.run(run())
    assert world.num_calls < 5


def test_a_batch_that_is_refused_leaves_its_images_to_others() -> None:
    world, key = World(), make_key(images_per_day=10, requests_per_minute=60)

    async def run() -> None:
        assert not await world.ask(0, key, 11)
        assert await world.ask(0, key, 10)
        assert not await world.ask(0, key, 1)

    asyncio.run(run())


def test_images_of_a_request_that_the_rate_refuses_are_not_counted() -> None:
    world, key = World(), make_key(images_per_day=10, requests_per_minute=6)

    async def run() -> None:
        assert await world.ask(0, key, 2)
        for _ in range(50):
            assert not await world.ask(0, key, 4)
        world.clock.now += 60
        assert await world.ask(0, key, 8)

    asyncio.run(run())


def test_images_that_were_not_made_are_refunded_on_the_same_day_only() -> None:
    world, key = World(start=MIDNIGHT + 86_000), make_key(images_per_day=4)

    async def run() -> None:
        client = world.replicas[0]
        receipt = await client.spend(key, 4)
        client.refund(receipt, 3)
        late = await client.spend(key, 3)
        world.clock.now += 500
        assert await world.ask(0, key, 4)
        client.refund(late, 3)
        assert not await world.ask(0, key, 1)

    asyncio.run(run())


def test_keys_have_separate_limits_and_changes_apply_at_once() -> None:
    world = World()

    async def run() -> None:
        assert await world.ask(0, make_key("ann", images_per_day=3), 3)
        assert await world.ask(0, make_key("bob", images_per_day=3), 3)
        assert not await world.ask(0, make_key("ann", images_per_day=3), 1)
        world.clock.now += 2
        assert await world.ask(0, make_key("ann", images_per_day=5), 2)
        assert not await world.ask(0, make_key("ann", images_per_day=5), 1)

    asyncio.run(run())


def test_a_restarted_limiter_remembers_the_images_of_the_day(tmp_path: Path) -> None:
    wall, bucket = Clock(MIDNIGHT + 5), Bucket("ann", "images", 10)
    assert RateLimiter(tmp_path / "images.json", wall_clock=wall).lease(bucket, 7, 7).num_tokens == 7
    again = RateLimiter(tmp_path / "images.json", wall_clock=wall)
    assert again.lease(bucket, 4, 4).num_tokens == 0
    assert again.lease(bucket, 3, 3).num_tokens == 3
    wall.now += 86_400
    assert again.lease(bucket, 10, 10).num_tokens == 10


def test_replicas_in_threads_spend_exactly_the_limit() -> None:
    limiter, key = RateLimiter(wall_clock=Clock(MIDNIGHT), clock=Clock(0.0)), make_key(images_per_day=2000)

    async def call(bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        await asyncio.sleep(0)
        return limiter.lease(bucket, needed, wanted)

    def run_replica(_: int) -> tuple[int, int]:
        client = RateLimitClient(call, Clock(0.0))

        async def ask() -> int:
            try:
                await client.spend(key, 1)
            except QuotaExceeded:
                return 0
            return 1

        async def run() -> int:
            return sum(await asyncio.gather(*(ask() for _ in range(700))))

        return asyncio.run(run()), client.held["ann", "images"].tokens

    with ThreadPoolExecutor(8) as pool:
        made, held = (sum(counts) for counts in zip(*pool.map(run_replica, range(8)), strict=True))
    assert made + held == limiter.images["ann"] <= 2000
    assert made > 1000

"""A replica's side of the rate limits: it spends leased tokens locally, and asks the `RateLimiter` for more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fusionray.errors import QuotaExceeded
from fusionray.serving.auth.key_file import ApiKey
from fusionray.serving.auth.rate_limits import Bucket, Kind, LimitState, TokenLease, find_capacity, list_buckets

# A replica that leases again within this time leases twice as much, up to the limit.
DOUBLING_SECONDS = 1.0
MAX_LEASED_TOKENS = 256
# A replica repeats a refusal for this long by itself, so that a client in a loop costs the limiter nothing.
REFUSAL_SECONDS = 1.0
# A replica asks the limiter again how much is left for what it tells clients, if it has not for this long.
STALE_SECONDS = 60.0
# What a replica knows of a bucket before it has asked.
NOTHING = TokenLease(0, 0.0)


@dataclass
class LocalTokens:
    """Tokens of one bucket that a replica holds, and what the limiter told last about the bucket."""

    tokens: int = 0
    expires_at: float = 0.0
    leased_at: float = float("-inf")
    amount: int = 1
    refused_at: float = float("-inf")
    refused_needed: int = 0
    retry_after_seconds: float = 0.0
    told: TokenLease = NOTHING
    told_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, needed: int, now: float) -> bool:
        """Spend tokens if enough are held and have not expired."""
        if now >= self.expires_at:
            self.tokens = 0
        if self.tokens < needed:
            return False
        self.tokens -= needed
        return True

    def add(self, lease: TokenLease, asked_at: float, now: float) -> None:
        """Add a lease; the held tokens that have not expired get its expiry."""
        if now >= self.expires_at:
            self.tokens = 0
        self.leased_at, self.expires_at = asked_at, asked_at + lease.life_seconds
        self.tokens += lease.num_tokens

    @property
    def day_seconds(self) -> float:
        """Return how long after `told_at` the day of a bucket of images ends."""
        return max(self.told.life_seconds, self.told.retry_after_seconds)

    def is_stale(self, bucket: Bucket, now: float) -> bool:
        """Tell whether the limiter should be asked again how much is left."""
        known_seconds = STALE_SECONDS if bucket.kind == "requests" else min(STALE_SECONDS, self.day_seconds)
        return now - self.told_at >= known_seconds

    def estimate(self, bucket: Bucket, now: float) -> LimitState:
        """Estimate the state of the bucket: other replicas may have leased more since the limiter was asked."""
        held = self.tokens if now < self.expires_at else 0
        passed = now - self.told_at
        used = max(0, self.told.used - held)
        if bucket.kind == "images":
            return LimitState(bucket, int(self.told.left) + held, used, max(0.0, self.day_seconds - passed))
        rate, capacity = bucket.limit / 60.0, find_capacity(bucket)
        remaining = min(capacity, self.told.left + rate * passed + held)
        return LimitState(bucket, int(remaining + 1e-9), used, (capacity - remaining) / rate)


@dataclass(frozen=True)
class Receipt:
    """What was counted for a request, and until when it can be refunded."""

    key: str
    num_images: int
    expires_at: float


class RateLimitClient:
    """Count the requests of one replica, in its event loop. `lease` calls `RateLimiter.lease`, wherever that runs.

    `spend` raises what `lease` raises while the limiter is away.
    """

    def __init__(
        self,
        lease: Callable[[Bucket, int, int], Awaitable[TokenLease]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease = lease
        self.clock = clock
        self.held: dict[tuple[str, Kind], LocalTokens] = {}

    async def spend(self, key: ApiKey, num_images: int) -> Receipt:
        """Count a request for so many images; return if it is allowed.

        Raises: QuotaExceeded; nothing is counted then.
        """
        receipt = Receipt(key.name, num_images, 0.0)
        if key.images_per_day is not None and num_images:
            held = await self.draw(Bucket(key.name, "images", key.images_per_day), num_images)
            receipt = Receipt(key.name, num_images, held.expires_at)
        if key.requests_per_minute is not None:
            try:
                await self.draw(Bucket(key.name, "requests", key.requests_per_minute), 1)
            except QuotaExceeded:
                self.refund(receipt, num_images)
                raise
        return receipt

    def refund(self, receipt: Receipt, num_images: int) -> None:
        """Refund images that were counted and then not made; a receipt of an earlier day refunds nothing."""
        held = self.held.get((receipt.key, "images"))
        if held is not None and self.clock() < receipt.expires_at:
            held.tokens += min(num_images, receipt.num_images)

    async def look(self, key: ApiKey, *, fresh: bool = False) -> list[LimitState]:
        """Estimate how far each limit of a key is used up; ask the limiter first if this replica knows too little.

        Raises: what `lease` raises while the limiter is away.
        """
        states = []
        for bucket in list_buckets(key):
            held = self.held.setdefault((bucket.key, bucket.kind), LocalTokens())
            asked_at = self.clock()
            if fresh or held.is_stale(bucket, asked_at):
                held.told, held.told_at = await self.lease(bucket, 0, 0), asked_at
            states.append(held.estimate(bucket, self.clock()))
        return states

    async def draw(self, bucket: Bucket, needed: int) -> LocalTokens:
        """Spend tokens of a bucket, and lease more if too few are held; return those that are held.

        Raises: QuotaExceeded.
        """
        held = self.held.setdefault((bucket.key, bucket.kind), LocalTokens())
        if not held.take(needed, self.clock()):
            async with held.lock:
                # Repeat: while this call leases what is missing, other calls spend what was held.
                while not held.take(needed, self.clock()):
                    await self.lease_more(held, bucket, needed)
        return held

    async def lease_more(self, held: LocalTokens, bucket: Bucket, needed: int) -> None:
        """Lease at least the missing tokens. A call that waited while another was refused is refused alike.

        Raises: QuotaExceeded.
        """
        asked_at = self.clock()
        since = asked_at - held.refused_at
        if needed >= held.refused_needed and since < min(REFUSAL_SECONDS, held.retry_after_seconds):
            raise refuse(bucket, needed, held.retry_after_seconds - since)
        is_soon = asked_at - held.leased_at < DOUBLING_SECONDS
        held.amount = min(2 * held.amount, MAX_LEASED_TOKENS) if is_soon else 1
        missing = needed - held.tokens
        lease = await self.lease(bucket, missing, max(missing, held.amount))
        held.told, held.told_at = lease, asked_at
        if not lease.num_tokens:
            held.refused_at, held.refused_needed = asked_at, needed
            held.retry_after_seconds = lease.retry_after_seconds
            raise refuse(bucket, needed, lease.retry_after_seconds)
        # The lifetime starts with the question, so that the lease never ends too late, however slow the answer was.
        held.add(lease, asked_at, self.clock())


def refuse(bucket: Bucket, needed: int, retry_after_seconds: float) -> QuotaExceeded:
    """Build the error of a refusal."""
    unit = "minute" if bucket.kind == "requests" else "day"
    asked = f"; {needed} more were asked for" if needed > 1 else ""
    detail = (
        f"the key {bucket.key} may ask {bucket.limit} {bucket.kind} a {unit}{asked}: "
        f"try again in {max(1, round(retry_after_seconds))} s"
    )
    return QuotaExceeded(f"{bucket.kind}_per_{unit}", retry_after_seconds, detail)

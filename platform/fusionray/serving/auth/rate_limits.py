"""How much each key may ask, over all replicas, without asking anybody about each request.

One ledger knows what is left. A replica borrows a few tokens from it at a time and spends them by itself: one token
while requests are rare, more the faster they come, fewer again where the ledger runs low. What is borrowed counts as
spent, so all replicas together never spend more than there is; what a dead one held is lost until its window ends.

    requests  token bucket: in any T seconds at most BURST_SECONDS + T seconds' worth of `requests_per_minute`
              (and at least one request); a grant of them is good for GRANT_SECONDS
    images    at most `images_per_day` between two midnights UTC; a grant is good until midnight
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fusionray.errors import QuotaExceeded
from fusionray.serving.auth.api_keys import ApiKey
from fusionray.storage.private_files import write_private

Kind = Literal["requests", "images"]

DAY_SECONDS = 86_400.0
BURST_SECONDS = 10.0
GRANT_SECONDS = 2.0
# Of what is left, the share that may be lent beyond what is needed at once.
SPARE_SHARE = 8
# A replica that borrows again within the first time borrows twice as much, up to a limit.
HURRY_SECONDS = 1.0
MOST_BORROWED = 256
# A refusal is believed for so long, so that a client that does not stop costs the ledger nothing.
REFUSAL_SECONDS = 1.0


@dataclass(frozen=True)
class Bucket:
    """Of whom and of what something is asked: `limit` a minute (requests) or a day (images)."""

    key: str
    kind: Kind
    limit: int


@dataclass(frozen=True)
class TokenLease:
    """What a replica may spend, and for how long; or nothing, and when there will be enough."""

    granted: int
    life_seconds: float
    retry_after_seconds: float = 0.0


@dataclass
class BucketState:
    """How full a bucket of requests was at a time of the clock."""

    tokens: float
    at: float


class RateLimiter:
    """Know what every key has left; there is one for all replicas. With a file, the day's images outlive it."""

    def __init__(
        self,
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.file = file
        self.clock = clock
        self.wall_clock = wall_clock
        self.lock = threading.Lock()
        self.levels: dict[str, BucketState] = {}
        self.day, self.images = self.load()

    def grant(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        """Lend `needed` tokens or none at all, and with them some of those that are `wanted` beyond."""
        with self.lock:
            lend = self.lend_requests if bucket.kind == "requests" else self.lend_images
            return lend(bucket, needed, wanted)

    def lend_requests(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        """Lend from a bucket that fills evenly."""
        rate, now = bucket.limit / 60.0, self.clock()
        capacity = max(1.0, rate * BURST_SECONDS)
        level = self.levels.setdefault(bucket.key, BucketState(capacity, now))
        level.tokens, level.at = min(capacity, level.tokens + rate * (now - level.at)), now
        # A billionth of a token is a rounding error of waiting for exactly as long as was told.
        if level.tokens + 1e-9 < needed:
            return TokenLease(0, 0.0, (needed - level.tokens) / rate)
        granted = choose_amount(int(level.tokens + 1e-9), needed, wanted)
        level.tokens -= granted
        return TokenLease(granted, GRANT_SECONDS)

    def lend_images(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        """Lend from what is left of the day."""
        now = self.wall_clock()
        left_of_day = DAY_SECONDS - now % DAY_SECONDS
        if (today := int(now // DAY_SECONDS)) > self.day:
            self.day, self.images = today, {}
        left = bucket.limit - self.images.get(bucket.key, 0)
        if left < needed:
            return TokenLease(0, 0.0, left_of_day)
        granted = choose_amount(left, needed, wanted)
        self.images[bucket.key] = self.images.get(bucket.key, 0) + granted
        self.save()
        return TokenLease(granted, left_of_day)

    def load(self) -> tuple[int, dict[str, int]]:
        """Read what an earlier ledger had lent of its day."""
        if self.file is None or not self.file.exists():
            return 0, {}
        stored = json.loads(self.file.read_bytes())
        return stored["day"], stored["images"]

    def save(self) -> None:
        """Write what is lent before it is spent."""
        if self.file is not None:
            write_private(self.file, json.dumps({"day": self.day, "images": self.images}).encode())


def choose_amount(left: int, needed: int, wanted: int) -> int:
    """Choose how much to lend: near the end hardly more than is needed, so that nothing lies about unspent."""
    return needed + max(0, min(wanted - needed, (left - needed) // SPARE_SHARE))


@dataclass
class LocalTokens:
    """What a replica holds of one bucket."""

    tokens: int = 0
    expires_at: float = 0.0
    borrowed_at: float = float("-inf")
    amount: int = 1
    refused_at: float = float("-inf")
    refused_needed: int = 0
    retry_after_seconds: float = 0.0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def take(self, needed: int, now: float) -> bool:
        """Spend tokens that are held, if they suffice and are still good."""
        if now >= self.expires_at:
            self.tokens = 0
        if self.tokens < needed:
            return False
        self.tokens -= needed
        return True

    def add(self, grant: TokenLease, asked_at: float, now: float) -> None:
        """Add a grant; what is left of an older window ends with that."""
        if now >= self.expires_at:
            self.tokens = 0
        self.borrowed_at, self.expires_at = asked_at, asked_at + grant.life_seconds
        self.tokens += grant.granted


@dataclass(frozen=True)
class Receipt:
    """What was counted for a request, and until when it can be given back."""

    key: str
    num_images: int
    expires_at: float


class RateLimitClient:
    """Spend for the requests of one replica, in its event loop. `ledger_call` is `RateLimiter.grant`, wherever that is.

    What `ledger_call` raises if the ledger is away comes out of `spend`.
    """

    def __init__(
        self,
        ledger_call: Callable[[Bucket, int, int], Awaitable[TokenLease]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ledger_call = ledger_call
        self.clock = clock
        self.purses: dict[tuple[str, Kind], LocalTokens] = {}

    async def spend(self, key: ApiKey, num_images: int) -> Receipt:
        """Count a request for so many images; return if it may be done.

        Raises: QuotaExceeded; nothing is counted then.
        """
        receipt = Receipt(key.name, num_images, 0.0)
        if key.images_per_day is not None and num_images:
            purse = await self.draw(Bucket(key.name, "images", key.images_per_day), num_images)
            receipt = Receipt(key.name, num_images, purse.expires_at)
        if key.requests_per_minute is not None:
            try:
                await self.draw(Bucket(key.name, "requests", key.requests_per_minute), 1)
            except QuotaExceeded:
                self.give_back(receipt, num_images)
                raise
        return receipt

    def give_back(self, receipt: Receipt, num_images: int) -> None:
        """Take back images that were counted and then not made; what is of another day than now is lost."""
        purse = self.purses.get((receipt.key, "images"))
        if purse is not None and self.clock() < receipt.expires_at:
            purse.tokens += min(num_images, receipt.num_images)

    async def draw(self, bucket: Bucket, needed: int) -> LocalTokens:
        """Spend from a purse, or borrow and spend; give the purse.

        Raises: QuotaExceeded.
        """
        purse = self.purses.setdefault((bucket.key, bucket.kind), LocalTokens())
        if not purse.take(needed, self.clock()):
            async with purse.lock:
                # Again and again: while one borrows what is lacking, others go on spending what the purse held.
                while not purse.take(needed, self.clock()):
                    await self.borrow(purse, bucket, needed)
        return purse

    async def borrow(self, purse: LocalTokens, bucket: Bucket, needed: int) -> None:
        """Borrow at least what a purse lacks; whoever waited for another's refusal gets the same, if it holds for it.

        Raises: QuotaExceeded.
        """
        asked_at = self.clock()
        since = asked_at - purse.refused_at
        if needed >= purse.refused_needed and since < min(REFUSAL_SECONDS, purse.retry_after_seconds):
            raise refuse(bucket, needed, purse.retry_after_seconds - since)
        hurried = asked_at - purse.borrowed_at < HURRY_SECONDS
        purse.amount = min(2 * purse.amount, MOST_BORROWED) if hurried else 1
        lacking = needed - purse.tokens
        grant = await self.ledger_call(bucket, lacking, max(lacking, purse.amount))
        if not grant.granted:
            purse.refused_at, purse.refused_needed = asked_at, needed
            purse.retry_after_seconds = grant.retry_after_seconds
            raise refuse(bucket, needed, grant.retry_after_seconds)
        # Its life began when it was asked for at the earliest: it never ends late, however slow the answer was.
        purse.add(grant, asked_at, self.clock())


def refuse(bucket: Bucket, needed: int, retry_after_seconds: float) -> QuotaExceeded:
    """Word a refusal."""
    unit = "minute" if bucket.kind == "requests" else "day"
    asked = f"; {needed} more were asked for" if needed > 1 else ""
    detail = (
        f"the key {bucket.key} may ask {bucket.limit} {bucket.kind} a {unit}{asked}: "
        f"try again in {max(1, round(retry_after_seconds))} s"
    )
    return QuotaExceeded(f"{bucket.kind}_per_{unit}", retry_after_seconds, detail)

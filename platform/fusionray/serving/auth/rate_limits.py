"""Rate limits of each key over all replicas, without a remote call for each request.

One `RateLimiter` counts for all replicas. A replica leases a few tokens at a time and spends them locally: one token
while requests are rare, more when requests come faster, fewer when few are left. Leased tokens count as spent, so all
replicas together never exceed a limit. If a replica dies, its tokens are lost until their window ends.

    requests  token bucket: in any T seconds at most BURST_SECONDS + T seconds' worth of `requests_per_minute`
              (and at least one request); a lease of them lasts LEASE_SECONDS
    images    at most `images_per_day` between two midnights UTC; a lease lasts until midnight
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fusionray.serving.addresses import keep_replica_on_loopback
from fusionray.serving.auth.key_file import ApiKey
from fusionray.storage.atomic_files import replace_private_file

Kind = Literal["requests", "images"]

DAY_SECONDS = 86_400.0
BURST_SECONDS = 10.0
LEASE_SECONDS = 2.0
# Beyond what a replica needs at once, a lease takes at most one part in SPARE_DIVISOR of what is left.
SPARE_DIVISOR = 8


@dataclass(frozen=True)
class Bucket:
    """One limit of one key: `limit` requests a minute, or `limit` images a day."""

    key: str
    kind: Kind
    limit: int


@dataclass(frozen=True)
class TokenLease:
    """Tokens that a replica may spend within `life_seconds`; or none, and the seconds until there are enough.

    `left` tokens remain for all replicas; `used` were leased in this minute (requests) or on this day (images).
    """

    num_tokens: int
    life_seconds: float
    retry_after_seconds: float = 0.0
    left: float = 0.0
    used: int = 0


@dataclass(frozen=True)
class LimitState:
    """How far a limit of a key is used up: how many may be sent at once now, and when the limit is full again."""

    bucket: Bucket
    remaining: int
    used: int
    reset_seconds: float

    @property
    def remaining_share(self) -> float:
        """Return the share that remains of what may be sent at once."""
        return self.remaining / (find_capacity(self.bucket) if self.bucket.kind == "requests" else self.bucket.limit)


@dataclass
class BucketState:
    """Tokens in a bucket of requests at a time of the clock, and those leased in a minute of the wall clock."""

    tokens: float
    at: float
    minute: int = 0
    used: int = 0


class RateLimiter:
    """Count the tokens of every key, once for all replicas. With a file, the day's images survive a restart."""

    def __init__(
        self,
        file: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        keep_replica_on_loopback()
        self.file = file
        self.clock = clock
        self.wall_clock = wall_clock
        self.lock = threading.Lock()
        self.buckets: dict[str, BucketState] = {}
        self.day, self.images = self.load()

    def lease(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        """Lease `needed` tokens or none, and some of those that are `wanted` beyond."""
        with self.lock:
            lease = self.lease_requests if bucket.kind == "requests" else self.lease_images
            return lease(bucket, needed, wanted)

    def lease_requests(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        """Lease from a bucket that refills evenly."""
        rate, now = bucket.limit / 60.0, self.clock()
        capacity = find_capacity(bucket)
        state = self.buckets.setdefault(bucket.key, BucketState(capacity, now))
        state.tokens, state.at = min(capacity, state.tokens + rate * (now - state.at)), now
        if (minute := int(self.wall_clock() // 60)) != state.minute:
            state.minute, state.used = minute, 0
        # A billionth of a token covers the rounding error of a client that waits exactly `retry_after_seconds`.
        if state.tokens + 1e-9 < needed:
            return TokenLease(0, 0.0, (needed - state.tokens) / rate, state.tokens, state.used)
        num_tokens = choose_amount(int(state.tokens + 1e-9), needed, wanted)
        state.tokens -= num_tokens
        state.used += num_tokens
        return TokenLease(num_tokens, LEASE_SECONDS, 0.0, state.tokens, state.used)

    def lease_images(self, bucket: Bucket, needed: int, wanted: int) -> TokenLease:
        """Lease from what is left of the day's images."""
        now = self.wall_clock()
        left_of_day = DAY_SECONDS - now % DAY_SECONDS
        if (today := int(now // DAY_SECONDS)) > self.day:
            self.day, self.images = today, {}
        used = self.images.get(bucket.key, 0)
        # A limit may have been lowered below what was used.
        left = max(0, bucket.limit - used)
        if left < needed:
            return TokenLease(0, 0.0, left_of_day, left, used)
        if num_tokens := choose_amount(left, needed, wanted):
            self.images[bucket.key] = used + num_tokens
            self.save()
        return TokenLease(num_tokens, left_of_day, 0.0, left - num_tokens, used + num_tokens)

    def load(self) -> tuple[int, dict[str, int]]:
        """Read the day and its images from the file."""
        if self.file is None or not self.file.exists():
            return 0, {}
        stored = json.loads(self.file.read_bytes())
        return stored["day"], stored["images"]

    def save(self) -> None:
        """Write the day's images before a replica spends them."""
        if self.file is not None:
            replace_private_file(self.file, json.dumps({"day": self.day, "images": self.images}).encode())


def choose_amount(left: int, needed: int, wanted: int) -> int:
    """Choose the size of a lease: close to `needed` when little is left, so that few tokens stay unspent."""
    return needed + max(0, min(wanted - needed, (left - needed) // SPARE_DIVISOR))


def find_capacity(bucket: Bucket) -> float:
    """Return how many requests a full bucket of requests allows at once."""
    return max(1.0, bucket.limit / 60.0 * BURST_SECONDS)


def list_buckets(key: ApiKey) -> list[Bucket]:
    """List the limits of a key."""
    limits: tuple[tuple[Kind, int | None], ...] = (
        ("requests", key.requests_per_minute),
        ("images", key.images_per_day),
    )
    return [Bucket(key.name, kind, limit) for kind, limit in limits if limit is not None]

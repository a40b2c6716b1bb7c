"""What is known of a job: its record, how far it is, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

EndState = Literal["done", "failed", "cancelled"]


@dataclass(frozen=True)
class JobRecord:
    """Owner, options and size of a job; they never change.

    `fingerprint` identifies the request of a job that came with an idempotency key; `webhook` is the host that
    is told of its end; `film` names the folder of a film's files, None: the targets are pictures.
    """

    job: str
    owner: str
    options: dict[str, Any]
    total: int
    num_bytes: int
    created_at: float
    fingerprint: str | None = None
    webhook: str | None = None
    film: str | None = None

    @property
    def identity(self) -> tuple[str, float]:
        """Identify the job among all that ever had its ID."""
        return self.job, self.created_at


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended."""

    state: EndState
    done: int
    failed: int
    ended_at: float
    reason: str | None = None


@dataclass(frozen=True)
class Progress:
    """Indices of the finished items; an item with both a picture and a problem counts as done."""

    done: frozenset[int]
    failed: frozenset[int]

    @property
    def finished(self) -> frozenset[int]:
        """Return the indices that need no more work."""
        return self.done | self.failed

    @property
    def ordered(self) -> list[int]:
        """Return the indices of the finished items in their order."""
        return sorted(self.finished)

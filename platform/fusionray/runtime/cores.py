"""The cores on which batches are computed: those of this process, or shared with other processes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Cores(Protocol):
    """The cores of a machine that this process shares with others."""

    def count_cores(self) -> int:
        """Return how many batches this process may compute at the same time just now."""
        ...

    def working(self) -> AbstractContextManager[None]:
        """Let the other processes know, for the length of a `with` block, that this one computes."""
        ...

    def do_others_work(self) -> bool:
        """Tell whether another process computes just now."""
        ...


class OwnCores:
    """Cores that no other process uses: `num_batches` are computed at the same time."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches = num_batches

    def count_cores(self) -> int:
        """Return the number of batches."""
        return self.num_batches

    def working(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def do_others_work(self) -> bool:
        """Nobody else computes."""
        return False

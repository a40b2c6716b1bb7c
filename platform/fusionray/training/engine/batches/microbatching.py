"""Micro-batches: the parts of a local batch that are computed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from fusionray.types import Batch


@dataclass(frozen=True)
class MicroBatch:
    """A prepared part of a local batch; `weight` is its fraction of the mean local batch, by which its loss counts.

    `shared`: tensors that a phase leaves for later phases; those with one row per image are cut with the batch.
    """

    batch: Batch
    weight: float
    shared: dict[str, Tensor] = field(default_factory=dict)


def cut(batch: Batch, size: int) -> list[Batch]:
    """Cut a batch into the fewest parts of at most `size` rows, as equal as they can be: see `spans`."""
    return [rows(batch, start, stop) for start, stop in spans(len(batch), size)]


def spans(count: int, size: int) -> list[tuple[int, int]]:
    """Divide `count` rows as `cut` does, without a single row left over, unless `size` is 1 or there is no other.

    A batch norm needs a variance. So of an odd number in pairs, one part has three rows.
    """
    num_parts = -(-count // size)
    if size > 1:
        num_parts = max(1, min(num_parts, count // 2))
    return list(pairwise(count * part // num_parts for part in range(num_parts + 1)))


def rows(batch: Batch, start: int, stop: int) -> Batch:
    """Return rows [start, stop) of every tensor."""
    return batch.map(lambda value: value[start:stop])


def recut(micros: Sequence[MicroBatch], size: int) -> list[MicroBatch]:
    """Cut prepared parts again, into at most `size` rows each, as equal as they can be."""
    parts = []
    for micro in micros:
        count = len(micro.batch)
        for start, stop in spans(count, size):
            part = rows(micro.batch, start, stop)
            shared = {
                name: value[start:stop] if value.ndim and len(value) == count else value
                for name, value in micro.shared.items()
            }
            parts.append(MicroBatch(part, micro.weight * len(part) / count, shared))
    return parts

"""Boxes: the part of a tensor that a rank holds, and who saves what several ranks hold.

A process that resumes imports this instead of `torch.distributed.checkpoint`, whose planners do the same: their import
takes 0.7 s of a core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from fusionray.checkpoint.sharding import is_sharded, local_part


@dataclass(frozen=True, order=True)
class Box:
    """Where a block of numbers lies in a tensor: its first index and its length in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(start + size for start, size in zip(self.offsets, self.sizes, strict=True))

    def overlap(self, other: Box) -> Box | None:
        """Return the box that two boxes of one tensor have in common, or None."""
        starts = tuple(map(max, self.offsets, other.offsets))
        sizes = tuple(end - start for start, end in zip(starts, map(min, self.ends, other.ends), strict=True))
        return Box(starts, sizes) if min(sizes, default=1) > 0 else None

    def cut(self, outer: Box) -> tuple[slice, ...]:
        """Return the indices of this box in a tensor that holds `outer`, a box around it."""
        starts = (at - before for at, before in zip(self.offsets, outer.offsets, strict=True))
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))


@dataclass(frozen=True)
class Held:
    """What a rank holds of a tensor; `shape`: that of the whole tensor, `num_bytes`: the length of what is held."""

    name: str
    shape: tuple[int, ...]
    box: Box
    num_bytes: int


def find_box(value: Tensor) -> Box:
    """Find which box of the whole tensor this process holds: all of it, unless it is a DTensor; under `no_grad`.

    Raises: TypeError if the placement of a DTensor is neither replication nor plain sharding.
    """
    offsets, sizes = [0] * value.ndim, list(value.shape)
    if is_sharded(value):
        from torch.distributed.tensor import Replicate, Shard

        mesh = value.device_mesh  # type: ignore[attr-defined]
        for axis, placement in enumerate(value.placements):  # type: ignore[attr-defined]
            if type(placement) is Shard:
                # As torch.chunk: equal lengths, rounded up, and the last ranks have less or nothing.
                length, left = -(-sizes[placement.dim] // mesh.size(axis)), sizes[placement.dim]
                start = min(mesh.get_local_rank(axis) * length, left)
                offsets[placement.dim] += start
                sizes[placement.dim] = min(length, left - start)
            elif type(placement) is not Replicate:
                raise TypeError(f"a checkpoint holds sharded and replicated tensors, not {placement}")
    if list(local_part(value).shape) != sizes:
        raise TypeError(f"a rank holds {list(local_part(value).shape)} of a tensor that is divided as {sizes}")
    return Box(tuple(offsets), tuple(sizes))


def describe_held(state: Mapping[str, Tensor]) -> list[Held]:
    """Describe what this process holds of each tensor of a state, in its order; under `no_grad`."""
    return [Held(name, tuple(value.shape), find_box(value), local_part(value).nbytes) for name, value in state.items()]


def divide(held: Sequence[Sequence[Held]]) -> list[list[Held]]:
    """Divide what the ranks hold (one sequence each) into what each of them saves; all ranks compute the same.

    What several ranks hold is saved by the one that has the fewest bytes to save so far.

    Raises: ValueError naming a tensor whose boxes overlap or leave something out.
    """
    holders: dict[Held, list[int]] = {}
    for rank, items in enumerate(held):
        for item in items:
            # A rank beyond the end of a short tensor holds nothing of it. A tensor of no numbers is saved all the same.
            if item.box.numel or not math.prod(item.shape):
                holders.setdefault(item, []).append(rank)
    check_boxes(holders)
    load = [0] * len(held)
    chosen: list[set[Held]] = [set() for _ in held]
    # What one rank alone holds leaves no choice; the longest of the rest come first, so that the shares become equal.
    for item, ranks in sorted(holders.items(), key=lambda each: (len(each[1]) > 1, -each[0].num_bytes, each[0].name)):
        rank = min(ranks, key=lambda candidate: (load[candidate], candidate))
        load[rank] += item.num_bytes
        chosen[rank].add(item)
    return [[item for item in items if item in chosen[rank]] for rank, items in enumerate(held)]


def check_boxes(items: Iterable[Held]) -> None:
    """Check that what is held of each tensor makes up the tensor.

    Raises: ValueError naming the first of which it does not.
    """
    shapes: dict[str, set[tuple[int, ...]]] = {}
    boxes: dict[str, list[Box]] = {}
    for item in items:
        shapes.setdefault(item.name, set()).add(item.shape)
        boxes.setdefault(item.name, []).append(item.box)
    for name, found in shapes.items():
        if len(found) > 1 or not make_up(next(iter(found)), boxes[name]):
            raise ValueError(f"{name}: what the ranks hold of it does not make up one tensor")


def make_up(shape: Sequence[int], boxes: Iterable[Box]) -> bool:
    """Return whether boxes that lie within a tensor are all of it, and no two of them overlap."""
    ordered = sorted(boxes)
    if sum(box.numel for box in ordered) != math.prod(shape):
        return False
    if all(box.sizes[1:] == tuple(shape[1:]) for box in ordered):
        # Divided in the first dimension alone, as FSDP does: neighbours are enough.
        return all(one.overlap(next_one) is None for one, next_one in pairwise(ordered))
    return not any(one.overlap(other) for place, one in enumerate(ordered) for other in ordered[place + 1 :])

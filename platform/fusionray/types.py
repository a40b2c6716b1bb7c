"""Values that pass between rooms.

Shape suffixes: N batch, C channels, H rows, W columns, P parameters of a person, A attributes of a picture.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

BatchT = TypeVar("BatchT", bound="Batch")


@dataclass(frozen=True)
class Batch:
    """A frozen set of tensors, and of such sets, that move together."""

    def map(self: BatchT, change: Callable[[Tensor], Tensor]) -> BatchT:
        """Apply a function to every tensor."""
        changes: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = change(value)
            elif isinstance(value, Batch):
                changes[field.name] = value.map(change)
        return replace(self, **changes)

    def to(self: BatchT, device: torch.device) -> BatchT:
        """Move to a device; page-locked host memory moves asynchronously."""
        return self.map(lambda value: value.to(device, non_blocking=True))

    def pin(self: BatchT) -> BatchT:
        """Copy to page-locked memory, from which a GPU reads by itself."""
        return self.map(Tensor.pin_memory)

    def head(self: BatchT, count: int) -> BatchT:
        """Take the first rows."""
        return self.map(lambda value: value[:count])

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(frozen=True)
class DecodedRows:
    """Decoded rows of shards in one role, before a recipe's family makes a `Batch` of them.

    `image` uint8 [N,3,S,S] RGB; `label` int64 [N], equal where rows of any role show one person (in shards of pictures:
    where they are cut from one picture); `region` uint8 [N,1,S,S], 255 where a face is, if that was read and is known;
    `columns` float32 [N,P] by the name of the shards' column, for synthetic faces.
    """

    image: Tensor
    label: Tensor
    region: Tensor | None
    columns: Mapping[str, Tensor]


@dataclass(frozen=True)
class FaceBatch(Batch):
    """Labelled crops: `image` uint8 [N,3,S,S] RGB, `label` int64 [N] (index of the person).

    For synthetic faces only, float32: `traits` [N,P], the person's parameters, and `attributes` [N,A], those of the
    picture as the crop shows them (columns IDENTITY_NAMES and ATTRIBUTE_NAMES of the synthetic world).
    """

    image: Tensor
    label: Tensor
    traits: Tensor | None = None
    attributes: Tensor | None = None


@dataclass(frozen=True)
class SyntheticTruth(Batch):
    """What renders the true fusion of a pair, all float32.

    `source_identity`, `target_identity` [N,P] parameters of both people, `target_attributes` [N,A] of the target
    picture, `view` [N,2,3] from crop unit square to picture unit square.
    """

    source_identity: Tensor
    target_identity: Tensor
    target_attributes: Tensor
    view: Tensor


@dataclass(frozen=True)
class PairBatch(Batch):
    """Pairs to fuse: crops uint8 [N,3,S,S] RGB; `same_identity` bool [N]; `truth` for synthetic faces only.

    `region` uint8 [N,1,S,S]: 255 where the target shows its face, if that was read and is known.
    """

    source: Tensor
    target: Tensor
    same_identity: Tensor
    truth: SyntheticTruth | None = None
    region: Tensor | None = None

    @classmethod
    def from_rows(cls, source: DecodedRows, target: DecodedRows) -> PairBatch:
        """Pair decoded rows; synthetic ones with what renders their true fusion."""
        truth = None
        if target.columns:
            truth = SyntheticTruth(
                source.columns["identity_parameters"],
                target.columns["identity_parameters"],
                target.columns["attribute_parameters"],
                target.columns["view"].reshape(-1, 2, 3),
            )
        return cls(source.image, target.image, source.label == target.label, truth, target.region)

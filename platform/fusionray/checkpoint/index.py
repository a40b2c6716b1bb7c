"""The table of a checkpoint: the place of each part of each tensor in the data files, and its SHA-256.

A data file is the plain bytes of parts of tensors (C order, the machine's little-endian numbers), one after the other.
File names and offsets are checked before anything is read: a table is untrusted input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import ValidationError

from fusionray.checkpoint.boxes import Box, make_up
from fusionray.checkpoint.info import CheckpointInfo, damaged
from fusionray.config import Section
from fusionray.errors import CheckpointMissing
from fusionray.storage import filesystem as storage

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


class Part(Section):
    """A box of a tensor, and the place of its bytes."""

    offsets: list[int]
    sizes: list[int]
    file: str
    start: int
    sha256: str

    @property
    def box(self) -> Box:
        return Box(tuple(self.offsets), tuple(self.sizes))


class TensorEntry(Section):
    """A tensor and the parts that it is made of."""

    dtype: str
    shape: list[int]
    parts: list[Part]

    def part_bytes(self, part: Part) -> int:
        return math.prod(part.sizes) * DTYPES[self.dtype].itemsize


class TensorTable(Section):
    """All tensors of a checkpoint by name."""

    tensors: dict[str, TensorEntry]


def read_table(folder: str, info: CheckpointInfo) -> TensorTable:
    """Read and check the table of a checkpoint.

    Raises: CheckpointMissing if its hash differs from that in the description, or if it is invalid.
    """
    try:
        data = storage.read_bytes(storage.join(folder, plain_name(folder, info.table)))
    except OSError:
        raise damaged(folder, info.table, "is missing or cannot be read") from None
    if storage.sha256_hex(data) != info.table_sha256:
        raise damaged(folder, info.table, "is not the file that was saved (SHA-256 differs)")
    try:
        table = TensorTable.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointMissing(
            f"{storage.join(folder, info.table)}: not a table of tensors "
            f"({'.'.join(map(str, first['loc']))}: {first['msg']}); use a checkpoint that fusionray wrote"
        ) from None
    for name, entry in table.tensors.items():
        if not follows(entry, info.files):
            raise CheckpointMissing(
                f"{storage.join(folder, info.table)}: the entry of {name} is wrong (its parts do not make up the "
                "tensor, or lie outside the files); use a checkpoint that fusionray wrote"
            )
    return table


def plain_name(folder: str, name: str) -> str:
    """Return a name if it is that of a file directly in the folder.

    Raises: CheckpointMissing for any other path.
    """
    if not name or "/" in name or "\\" in name or name in (".", ".."):
        raise CheckpointMissing(
            f"{folder}: names a file outside the folder ({name!r}); use a checkpoint that fusionray wrote"
        )
    return name


def follows(entry: TensorEntry, files: Mapping[str, int]) -> bool:
    """Return whether the parts of a tensor lie within it and within known files, and make it up."""
    if entry.dtype not in DTYPES or min(entry.shape, default=0) < 0:
        return False
    for part in entry.parts:
        if not len(part.offsets) == len(part.sizes) == len(entry.shape) or "/" in part.file:
            return False
        inside = zip(part.offsets, part.sizes, entry.shape, strict=True)
        if any(offset < 0 or size < 0 or offset + size > whole for offset, size, whole in inside):
            return False
        if part.start < 0 or part.start + entry.part_bytes(part) > files.get(part.file, -1):
            return False
    return make_up(entry.shape, [part.box for part in entry.parts])

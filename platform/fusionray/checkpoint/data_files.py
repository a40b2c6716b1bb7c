"""Reading parts of tensors from the data files of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.checkpoint.index import DTYPES, Part, TensorEntry
from fusionray.checkpoint.info import damaged
from fusionray.storage import filesystem as storage
from fusionray.storage.retries import ask_again

# Parts are read in pieces of this size, since each request to an object store waits; smaller gaps are read along.
READ_BYTES, GAP_BYTES = 32 * 2**20, 2**20


@dataclass(frozen=True)
class Need:
    """A part that this process needs, the box of it that is wanted, and the view of the target that it fills."""

    entry: TensorEntry
    part: Part
    box: tuple[slice, ...]
    view: Tensor

    @property
    def start(self) -> int:
        """The first byte of the part in its file."""
        return self.part.start

    @property
    def stop(self) -> int:
        """The byte behind the part in its file."""
        return self.part.start + self.entry.part_bytes(self.part)


def read_file(folder: str, name: str, needs: Sequence[Need]) -> None:
    """Read parts of one data file in their order into the views that need them, neighbours at once."""
    filesystem, path = storage.open_filesystem(storage.join(folder, name))
    try:
        with filesystem.open_input_file(path) as file:
            for together in join_needs(needs):
                first = together[0].start
                data = np.empty(together[-1].stop - first, np.uint8)
                # Of a file that is too short, the rest is not what was saved.
                ask_again(filesystem, partial(fill, file, first, data))
                for need in together:
                    part = data[need.start - first : need.stop - first]
                    if (need.start - first) % DTYPES[need.entry.dtype].itemsize:
                        # Its type cannot begin at this byte.
                        part = part.copy()
                    if hashlib.sha256(part.data).hexdigest() != need.part.sha256:
                        raise damaged(folder, name, "does not hold what was saved (SHA-256 differs)")
                    values = torch.from_numpy(part).view(DTYPES[need.entry.dtype]).view(need.part.sizes)
                    need.view.copy_(values[need.box])
    except OSError as error:
        raise damaged(folder, name, f"cannot be read ({str(error).splitlines()[0]})") from None


def join_needs(needs: Sequence[Need]) -> Iterator[list[Need]]:
    """Join parts that lie near to each other, in their order, up to READ_BYTES."""
    together: list[Need] = []
    for need in needs:
        if together and (need.start > together[-1].stop + GAP_BYTES or need.stop > together[0].start + READ_BYTES):
            yield together
            together = []
        together.append(need)
    if together:
        yield together


def fill(file: Any, start: int, data: NDArray[np.uint8]) -> None:
    """Fill `data` from a place of a file."""
    file.seek(start)
    file.readinto(data)

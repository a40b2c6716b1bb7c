"""Labels of the people of a training split: what a classifier of people is trained on."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fusionray.data.shards import Manifest
from fusionray.errors import InputMissing, ShardCorrupt
from fusionray.storage import filesystem as storage

LABELS_NAME = "labels.npy"
HASH_BYTES = 8


class PersonLabels:
    """The label of each person: the place of the hash of its name among all of them, 8 bytes a person.

    Two of ten million people have the same hash, and so the same label, with a probability of 3 in a million.
    """

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self.hashes = hashes

    @classmethod
    def of(cls, names: Iterable[str]) -> PersonLabels:
        """Number people."""
        return cls(np.unique(np.fromiter(map(hash_name, names), np.uint64)))

    def __getitem__(self, name: str) -> int:
        """Return the label of a person.

        Raises: KeyError if it is none of these people.
        """
        wanted = hash_name(name)
        place = int(np.searchsorted(self.hashes, np.uint64(wanted)))
        if place == len(self.hashes) or self.hashes[place] != wanted:
            raise KeyError(name)
        return place


def hash_name(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=HASH_BYTES).digest(), "little")


def write_labels(folder: str, names: Iterable[str]) -> None:
    """Write the labels of the people of the training split into a folder of shards."""
    buffer = io.BytesIO()
    np.save(buffer, PersonLabels.of(names).hashes)
    storage.write_atomic(storage.join(folder, LABELS_NAME), buffer.getvalue())


def read_labels(folder: str, manifest: Manifest) -> PersonLabels:
    """Read the labels of the people of the training split of a folder of shards.

    Raises: InputMissing if it has none; ShardCorrupt if they are not those of the manifest.
    """
    location = storage.join(folder, LABELS_NAME)
    if not storage.exists(location):
        raise InputMissing(f"{folder}: has no {LABELS_NAME}; run `fusionray prepare` again into {folder}")
    try:
        hashes = np.load(io.BytesIO(storage.read_bytes(location)), allow_pickle=False)
        whole = hashes.dtype == np.uint64 and hashes.ndim == 1 and bool(np.all(hashes[1:] > hashes[:-1]))
    except (ValueError, EOFError):
        whole = False
    if not whole or len(hashes) > manifest.num_people:
        raise ShardCorrupt(f"{location}: is damaged; delete it, and run `fusionray prepare` again into {folder}")
    return PersonLabels(hashes)

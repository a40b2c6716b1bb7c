"""Where pictures come from: the interface, its values, and how a path tells who is in the picture."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.errors import ImageRejected, InputMissing
from fusionray.faces.face import FloatMap, Image, Points


class Entry(NamedTuple):
    """One picture that a source offers. `identity` and `source` are printable; `locator` is the source's own."""

    identity: str
    source: str
    locator: str
    size_bytes: int = 0
    offset: int = 0


class Dropped(NamedTuple):
    """One picture that is not used, with the short key that the manifest counts by and a line for people."""

    source: str
    reason: str
    detail: str


@dataclass(frozen=True, eq=False, slots=True)
class Truth:
    """What generated a synthetic picture: parameter vectors float32, and its five points in picture pixels.

    `region` [H, W] in 0..1: how much of each pixel shows the face.
    """

    identity_parameters: NDArray[np.float32]
    attribute_parameters: NDArray[np.float32]
    landmarks: Points
    region: FloatMap


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """A decoded picture: uint8 RGB HWC."""

    entry: Entry
    image: Image
    truth: Truth | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds: the pictures to try, and what was refused by its name or kind alone."""

    entries: list[Entry]
    dropped: list[Dropped]


class PictureSource(Protocol):
    """A set of pictures. Sources can be pickled; they open files in the process that reads."""

    synthetic: bool

    def signature(self) -> str:
        """Give a string that changes whenever the content may have changed (names, sizes, times)."""
        ...

    def list_entries(self) -> Listing:
        """List all pictures, in a fixed order.

        Raises:
            InputMissing: there is nothing to list.
        """
        ...

    def read(self, entries: Sequence[Entry]) -> Iterator[Picture | Dropped]:
        """Read and decode pictures; one that cannot be used comes back as `Dropped`."""
        ...


def printable(name: str) -> str:
    r"""Make a file name fit for UTF-8 files: bytes that are no UTF-8 (kept by Python as surrogates) become \xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def identity_of(path: str) -> str:
    """Tell the identity from a relative path with `/`: its folder; a picture at the top is a person of its own."""
    parent, _, name = path.rpartition("/")
    return printable(parent or name)


def without_wrapper(paths: Sequence[str]) -> int:
    """Give how many leading characters of all paths are one wrapping folder, as most archives have.

    `faces/ann/1.png, faces/bob/1.png` have one; `ann/1.png, ann/2.png` have none: there the folder is the person.
    """
    tops = {path.partition("/")[0] for path in paths}
    wrapped = len(tops) == 1 and any(path.count("/") >= 2 for path in paths) and all("/" in path for path in paths)
    return len(tops.pop()) + 1 if wrapped else 0


def is_unsafe(path: str) -> bool:
    """Tell whether an archive member's name points out of the archive."""
    return path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path


def as_dropped(entry: Entry, error: ImageRejected) -> Dropped:
    """Turn a refusal into the line that is listed."""
    return Dropped(entry.source, error.reason, str(error))


def unseen(location: str) -> InputMissing:
    """Make the error of a worker that does not see an input which the driver listed."""
    node = socket.gethostname()
    return InputMissing(f"{location}: not visible on {node}; put it on storage that all nodes share, or name a URI")

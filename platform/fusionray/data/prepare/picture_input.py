"""The interface of inputs of prepare, its values, and the rules that derive an identity from a path."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fusionray.data.prepare.picture_entries import PictureEntries, PictureEntry
from fusionray.errors import ImageRejected, InputMissing
from fusionray.faces.face import FloatMap, Image, Points


class DroppedPicture(NamedTuple):
    """One picture that is not used: the key of the reason, which the manifest counts, and an explanation."""

    source: str
    reason: str
    detail: str


@dataclass(frozen=True, eq=False, slots=True)
class GroundTruth:
    """The ground truth of a synthetic picture: parameter vectors float32, and five landmarks in picture pixels.

    `region` [H, W] in [0, 1]: the share of each pixel that shows the face.
    """

    identity_parameters: NDArray[np.float32]
    attribute_parameters: NDArray[np.float32]
    landmarks: Points
    region: FloatMap


@dataclass(frozen=True, eq=False, slots=True)
class DecodedPicture:
    """A decoded picture: uint8 RGB HWC."""

    entry: PictureEntry
    image: Image
    truth: GroundTruth | None = None


@dataclass(frozen=True, slots=True)
class InputListing:
    """The content of an input: the pictures to read, and the files that were dropped without reading them."""

    entries: PictureEntries
    dropped: list[DroppedPicture]


class PictureInput(Protocol):
    """A set of pictures. It can be pickled, and opens files in the process that reads."""

    synthetic: bool

    def signature(self) -> str:
        """Return a string that changes if the content may have changed (names, sizes, times)."""
        ...

    def list_entries(self) -> InputListing:
        """List all pictures, in a fixed order.

        Raises:
            InputMissing: the input cannot be listed.
        """
        ...

    def read(self, entries: Sequence[PictureEntry]) -> Iterator[DecodedPicture | DroppedPicture]:
        """Read and decode pictures; one that cannot be used is yielded as `DroppedPicture`."""
        ...


def printable(name: str) -> str:
    r"""Make a file name encodable as UTF-8: bytes that are not UTF-8 (surrogates in Python) become \xNN."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def identity_from_path(path: str) -> str:
    """Return the identity of a relative path with `/`: its folder, or its name if it has no folder."""
    parent, _, name = path.rpartition("/")
    return printable(parent or name)


def wrapper_length(paths: Sequence[str]) -> int:
    """Count the leading characters of all paths that are one common top folder, as in most archives.

    `faces/ann/1.png, faces/bob/1.png` have one. `ann/1.png, ann/2.png` have none: the folder is the person.
    """
    tops = {path.partition("/")[0] for path in paths}
    wrapped = len(tops) == 1 and any(path.count("/") >= 2 for path in paths) and all("/" in path for path in paths)
    return len(tops.pop()) + 1 if wrapped else 0


def is_unsafe_path(path: str) -> bool:
    """Return whether the name of an archive member points outside the archive."""
    return path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path


def as_dropped(entry: PictureEntry, error: ImageRejected) -> DroppedPicture:
    """Convert the rejection of a picture to its entry in the list of dropped pictures."""
    return DroppedPicture(entry.source, error.reason, str(error))


def not_visible_error(location: str) -> InputMissing:
    """Build the error of a worker whose node does not see an input that the driver listed."""
    node = socket.gethostname()
    return InputMissing(f"{location}: not visible on {node}; put it on storage that all nodes share, or name a URI")

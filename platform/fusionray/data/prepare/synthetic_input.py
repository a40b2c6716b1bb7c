"""Render synthetic people, or synthetic pictures, as an input of prepare; they are rendered when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fusionray.data.prepare.picture_entries import PictureEntries, PictureEntry
from fusionray.data.prepare.picture_input import DecodedPicture, DroppedPicture, GroundTruth, InputListing
from fusionray.errors import ConfigInvalid

SCHEME = "synthetic://"
# Folders of the contents and of the styles among synthetic pictures.
CONTENTS = "contents"
PICTURE_FOLDERS = (CONTENTS, "styles")
_BOUNDS = {"people": (1, 1_000_000), "images": (1, 100_000), "size": (32, 2048), "seed": (0, 2**31 - 1)}
_PICTURE_BOUNDS = {"pictures": (2, 1_000_000), "size": _BOUNDS["size"], "seed": _BOUNDS["seed"]}
_DEFAULTS = {"people": 500, "images": 20, "size": 128, "seed": 0}
# The renderer sorts the rows of a call by their layers: 256 pictures of 128 px take a quarter less time each than 16.
_BATCH_PIXELS = 256 * 128**2


class SyntheticInput:
    """`people` x `images` pictures of `size` px. Person k does not depend on the number of people."""

    synthetic = True

    def __init__(self, *, people: int, images: int, size: int, seed: int) -> None:
        self._people = people
        self._images = images
        self._size = size
        self._seed = seed
        self._identities: Any = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_identities": None}

    def signature(self) -> str:
        """Return the four numbers that determine all pictures."""
        return f"people={self._people},images={self._images},size={self._size},seed={self._seed}"

    def list_entries(self) -> InputListing:
        """List all pictures, person by person."""
        people = (f"person-{person:06d}" for person in range(self._people))
        return InputListing(
            PictureEntries(
                PictureEntry(name, f"{name}/{number:05d}", str(number))
                for name in people
                for number in range(self._images)
            ),
            [],
        )

    def read(self, entries: Sequence[PictureEntry]) -> Iterator[DecodedPicture | DroppedPicture]:
        """Render pictures in batches."""
        import torch

        from fusionray.data import synthetic

        if self._identities is None:
            self._identities = synthetic.sample_identities(self._people, self._seed)
        attributes_by_person: dict[int, Any] = {}
        step = max(1, _BATCH_PIXELS // self._size**2)
        for start in range(0, len(entries), step):
            batch = entries[start : start + step]
            people = [int(entry.identity.rpartition("-")[2]) for entry in batch]
            for person in people:
                if person not in attributes_by_person:
                    attributes_by_person[person] = synthetic.sample_attributes(self._images, self._person_seed(person))
            identity_NI = self._identities[people]
            attributes_NA = torch.stack(
                [attributes_by_person[person][int(entry.locator)] for person, entry in zip(people, batch, strict=True)]
            )
            with torch.inference_mode():
                images_NCHW, regions_N1HW = synthetic.render_with_region(identity_NI, attributes_NA, self._size)
                points_N52 = synthetic.project_landmarks(identity_NI, attributes_NA).numpy() * self._size - 0.5
            images_NHWC = (images_NCHW.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
            for index, entry in enumerate(batch):
                truth = GroundTruth(
                    identity_NI[index].numpy().astype(np.float32),
                    attributes_NA[index].numpy().astype(np.float32),
                    points_N52[index].astype(np.float32),
                    regions_N1HW[index, 0].numpy(),
                )
                yield DecodedPicture(entry, np.ascontiguousarray(images_NHWC[index]), truth)

    def _person_seed(self, person: int) -> int:
        """Derive a seed per person, so that a shard is rendered without the people before it."""
        return int(np.random.SeedSequence([self._seed, person]).generate_state(1)[0] >> 1)


class SyntheticPictures:
    """Contents and styles of `size` px without people to tell apart, half of `pictures` each, in turns.

    Content k and style k do not depend on the number of pictures. The source of a style begins with `styles/`.
    """

    synthetic = True

    def __init__(self, *, pictures: int, size: int, seed: int) -> None:
        self._pictures = pictures
        self._size = size
        self._seed = seed

    def signature(self) -> str:
        """Return the three numbers that determine all pictures."""
        return f"pictures={self._pictures},size={self._size},seed={self._seed}"

    def list_entries(self) -> InputListing:
        """List all pictures, a content and a style in turns, so that each shard holds both."""
        names = (f"{PICTURE_FOLDERS[place % 2]}/{place // 2:06d}" for place in range(self._pictures))
        return InputListing(PictureEntries(PictureEntry(name, name, name) for name in names), [])

    def read(self, entries: Sequence[PictureEntry]) -> Iterator[DecodedPicture | DroppedPicture]:
        """Render pictures in batches."""
        from fusionray.data.synthetic.pictures import draw_contents, draw_style

        step = max(1, _BATCH_PIXELS // self._size**2)
        for start in range(0, len(entries), step):
            batch = entries[start : start + step]
            named = [(entry.locator.partition("/")[0], int(entry.locator.rpartition("/")[2])) for entry in batch]
            contents = iter(
                draw_contents(self._seed, [number for kind, number in named if kind == CONTENTS], self._size)
            )
            for entry, (kind, number) in zip(batch, named, strict=True):
                drawn = next(contents) if kind == CONTENTS else draw_style(self._seed, number, self._size)
                yield DecodedPicture(entry, drawn)


def parse_synthetic(text: str) -> SyntheticInput | SyntheticPictures:
    """Parse `synthetic://people=500,images=20,size=128,seed=0`, or `synthetic://pictures=4000,size=128,seed=0`.

    Keys that are left out take the values of the first; only the second address has `pictures`.

    Raises:
        ConfigInvalid: a key is unknown, given twice, not a whole number or out of range.
    """
    items = [item.partition("=") for item in text.removeprefix(SCHEME).split(",") if item]
    of_pictures = any(key.strip() == "pictures" for key, _, _ in items)
    bounds = _PICTURE_BOUNDS if of_pictures else _BOUNDS
    values: dict[str, int] = {}
    for name, _, written in items:
        key, number = name.strip(), written.strip()
        if key not in bounds or key in values:
            state = "is given twice" if key in values else f"is not known; there are {', '.join(bounds)}"
            raise ConfigInvalid(f"{text}: the key '{key}' {state}")
        low, high = bounds[key]
        if not number.isascii() or not number.isdigit() or not low <= int(number) <= high:
            raise ConfigInvalid(f"{text}: {key}={number}: write a whole number from {low} to {high}")
        values[key] = int(number)
    if of_pictures:
        return SyntheticPictures(**({"size": _DEFAULTS["size"], "seed": _DEFAULTS["seed"]} | values))
    return SyntheticInput(**(_DEFAULTS | values))

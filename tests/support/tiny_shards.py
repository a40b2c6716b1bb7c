"""Small sets of shards of pictures that no camera took, written in a moment: each crop has a colour of its own."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from fusionray.data.pairs import EncodedCrop
from fusionray.data.person_labels import write_labels
from fusionray.data.shards import Manifest, ShardInfo, Split, build_face_row, write_manifest, write_shard
from fusionray.data.synthetic import sample_attributes, sample_identities
from tests.support.tiny_manifest import build_manifest

SIZE = 16
LANDMARKS_52 = np.array([[5, 6], [10.5, 6], [8, 9], [6, 12], [10, 12.25]], np.float32)


def draw_crop(person: int, number: int, size: int = SIZE) -> NDArray[np.uint8]:
    """Draw noise, [S,S,3] uint8 RGB, whose seed is (person, number)."""
    return np.random.default_rng([person, number]).integers(0, 256, (size, size, 3), dtype=np.uint8)


def encode(picture: NDArray[np.uint8], image_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format=image_format)
    return buffer.getvalue()


def name_person(person: int) -> str:
    return f"person-{person:03d}"


def build_crops(people: int, pictures: int) -> list[EncodedCrop]:
    """Build crops whose bytes are their names: enough for pairing, which never decodes."""
    return [
        EncodedCrop(f"{person}/{number}".encode(), name_person(person))
        for person in range(people)
        for number in range(pictures)
    ]


def build_table(crops: Sequence[EncodedCrop]) -> pa.Table:
    """Build the rows that a reader would hand over."""
    return pa.table({"image": [crop.image for crop in crops], "identity": [crop.identity for crop in crops]})


def build_tiny_row(person: int, number: int, size: int, *, synthetic: bool) -> dict[str, Any]:
    """Build a row of noise; a synthetic one carries parameters of the world, as if it had been drawn from them."""
    truth: dict[str, Any] = {}
    if synthetic:
        seed = 1000 * person + number
        truth = {
            "identity_parameters": sample_identities(person + 1, 0)[-1].numpy(),
            "attribute_parameters": sample_attributes(1, seed)[0].numpy(),
            "view_23": np.array([[0.5, 0, 0.25], [0, 0.5, 0.25]], np.float32),
        }
    image = encode(draw_crop(person, number, size))
    return build_face_row(image, name_person(person), LANDMARKS_52, f"{person}/{number}", **truth)


def write_tiny_shards(
    folder: Path,
    *,
    people: int = 8,
    pictures: int = 6,
    shards: int = 4,
    validation_people: int = 2,
    test_people: int = 0,
    size: int = SIZE,
    synthetic: bool = False,
) -> Manifest:
    """Write `people` x `pictures` PNG crops for training in `shards` files, and a file for each split held out."""
    infos: list[ShardInfo] = []
    groups: list[tuple[Split, list[int]]] = [("train", list(range(shard, people, shards))) for shard in range(shards)]
    counts: dict[Split, int] = {"train": people, "validation": validation_people, "test": test_people}
    for split in ("validation", "test"):
        first = sum(len(members) for _, members in groups)
        if counts[split]:
            groups.append((split, list(range(first, first + counts[split]))))
    for index, (split, members) in enumerate(groups):
        rows = [
            build_tiny_row(person, number, size, synthetic=synthetic)
            for person in members
            for number in range(pictures)
        ]
        infos.append(write_shard(str(folder), f"shard-{index:05d}.parquet", split, rows))
    manifest = build_manifest(infos, size, synthetic=synthetic)
    write_labels(str(folder), map(name_person, range(people)))
    write_manifest(str(folder), manifest)
    return manifest


def flip_a_bit(path: Path) -> None:
    """Damage a file as a failing disk does; in a shard it lies within a picture."""
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)

"""Draw the contact sheet: crops of a few people, one row for each, to check a set of shards by eye."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import cv2
import numpy as np

from fusionray.data.shards import GROUP_COLUMNS, SPLITS, Manifest
from fusionray.faces.face import Image
from fusionray.faces.image_files.decode import ImageLimits, decode_image
from fusionray.storage import filesystem as storage

_MAX_PEOPLE, _MAX_CROPS = 12, 8
_CELL = 112
_LABEL_HEIGHT = 16


def draw_contact_sheet(people: Mapping[str, Iterable[Image]]) -> Image:
    """Draw up to 12 people with up to 8 crops each; the label of a row is the identity."""
    shown = {identity: list(crops)[:_MAX_CROPS] for identity, crops in list(people.items())[:_MAX_PEOPLE]}
    width = max(4, *(len(crops) for crops in shown.values())) * _CELL
    rows = []
    for identity, crops in shown.items():
        row = np.full((_LABEL_HEIGHT + _CELL, width, 3), 32, np.uint8)
        # The built-in font of OpenCV has ASCII only.
        label = identity.encode("ascii", "replace").decode()[: width // 8]
        cv2.putText(row, label, (4, _LABEL_HEIGHT - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (220, 220, 220), 1, cv2.LINE_AA)
        for column, crop in enumerate(crops):
            interpolation = cv2.INTER_AREA if crop.shape[0] > _CELL else cv2.INTER_LINEAR
            cell = cv2.resize(crop, (_CELL, _CELL), interpolation=interpolation)
            row[_LABEL_HEIGHT:, column * _CELL : (column + 1) * _CELL] = cell
        rows.append(row)
    return np.concatenate(rows)


def collect_crops(folder: str, manifest: Manifest) -> dict[str, list[Image]]:
    """Read the crops for a contact sheet from as few shards as possible, training shards first.

    A row of the sheet shows one person; for pictures, a row shows consecutive pictures with the name of the first.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    shown: dict[str, list[Image]] = {}
    limits = ImageLimits(min_side=1)
    column = GROUP_COLUMNS[manifest.task]
    for file in [file for split in SPLITS for file in manifest.files(split)]:
        data = storage.read_bytes(storage.join(folder, file))
        table = pq.read_table(pa.BufferReader(data), columns=["image", column])
        for image, group in zip(table["image"], table[column].to_pylist(), strict=True):
            row = group
            if manifest.task == "pictures" and shown and len(shown[last := next(reversed(shown))]) < _MAX_CROPS:
                row = last
            if row not in shown and len(shown) == _MAX_PEOPLE:
                break
            crops = shown.setdefault(row, [])
            if len(crops) < _MAX_CROPS:
                crops.append(decode_image(image.as_py(), limits))
        if len(shown) == _MAX_PEOPLE:
            break
    return shown

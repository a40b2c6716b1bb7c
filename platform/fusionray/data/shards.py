"""The shard format: Parquet files of encoded crops, and the manifest that lists them with counts, splits and hashes.

The `task` of the manifest says what a row is. `faces`: one aligned crop of a person; rows of a person are adjacent, and
all are in the same split. `pictures`: one crop of any picture.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from fusionray.config import Section
from fusionray.errors import InputMissing, ShardCorrupt, ShardMismatch
from fusionray.shard_task import ShardTask
from fusionray.storage import filesystem as storage

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION: Literal[1] = 1
# Small row groups let a reader read a part of a shard; 256 crops of 128 px are about 1 MB.
ROWS_PER_GROUP = 256

Split = Literal["train", "validation", "test"]
# Models are chosen on validation; only the chosen model is evaluated on test.
SPLITS: tuple[Split, ...] = get_args(Split)

REGION_COLUMN = "region"
FACES_SCHEMA = pa.schema(
    [
        pa.field("image", pa.binary(), nullable=False),
        pa.field("identity", pa.string(), nullable=False),
        pa.field("landmarks", pa.list_(pa.list_(pa.float32(), 2), 5), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        # A grey PNG of the size of the crop, 255 where it shows the face; null or absent if it is not known.
        pa.field(REGION_COLUMN, pa.binary()),
    ]
)
SYNTHETIC_FACES_SCHEMA = pa.schema(
    [
        *FACES_SCHEMA,
        pa.field("identity_parameters", pa.list_(pa.float32()), nullable=False),
        pa.field("attribute_parameters", pa.list_(pa.float32()), nullable=False),
        pa.field("view", pa.list_(pa.float32(), 6), nullable=False),
    ]
)


PICTURES_SCHEMA = pa.schema(
    [
        pa.field("image", pa.binary(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        # Size in pixels of the picture that the crop is cut from.
        pa.field("width", pa.int32(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
    ]
)
# The column that groups rows: by person, or by the picture they are cut from.
GROUP_COLUMNS: dict[ShardTask, str] = {"faces": "identity", "pictures": "source"}


class ShardInfo(Section):
    """The entry of one Parquet file in the manifest."""

    file: str
    split: Split
    rows: int
    identities: int
    bytes: int
    sha256: str


class SplitInfo(Section):
    """The size of a split."""

    rows: int
    identities: int


class Manifest(Section):
    """The description of a set of shards; `fingerprint` is a hash of input and settings.

    `identities` and `num_identities` count groups: people, or pictures in shards of pictures. A split that is not in
    `splits` is empty.
    """

    format_version: Literal[1] = FORMAT_VERSION
    task: ShardTask = Field("faces", description="what a row is, and with it which columns there are")
    template: str = Field(description="alignment of the crops; empty for pictures, which are not aligned")
    size: int
    image_format: str
    seed: int
    input: str
    fingerprint: str
    code_version: str
    synthetic: bool
    skin_regions: bool = Field(False, description="whether the regions of photographs are all visible skin")
    num_images: int
    num_identities: int
    splits: dict[str, SplitInfo]
    shards: list[ShardInfo]
    num_dropped: int
    dropped: dict[str, int]

    @property
    def num_people(self) -> int:
        """Count the people of the training split; 0 for shards of pictures."""
        train = self.splits.get("train")
        return 0 if train is None or self.task == "pictures" else train.identities

    def digest(self) -> str:
        """Return a hash of the content, which does not depend on the folder."""
        return storage.sha256_hex("\n".join(sorted(shard.sha256 for shard in self.shards)).encode())

    def files(self, split: Split) -> list[str]:
        """List the file names of a split, sorted."""
        return sorted(shard.file for shard in self.shards if shard.split == split)


def build_face_row(
    image: bytes,
    identity: str,
    landmarks_52: NDArray[np.float32],
    source: str,
    *,
    region: bytes | None = None,
    identity_parameters: NDArray[np.float32] | None = None,
    attribute_parameters: NDArray[np.float32] | None = None,
    view_23: NDArray[np.float32] | None = None,
) -> dict[str, Any]:
    """Build one row of `faces`: an encoded crop, landmarks in crop pixels, and the parameters of synthetic faces.

    `region`: a grey PNG, 255 where the crop shows the face; None if it is not known. `view_23` maps unit coordinates
    of the crop to those of the picture.
    """
    row: dict[str, Any] = {
        "image": image,
        "identity": identity,
        "landmarks": landmarks_52.astype(np.float32).tolist(),
        "source": source,
        REGION_COLUMN: region,
    }
    if identity_parameters is not None and attribute_parameters is not None and view_23 is not None:
        row["identity_parameters"] = identity_parameters.astype(np.float32)
        row["attribute_parameters"] = attribute_parameters.astype(np.float32)
        row["view"] = view_23.astype(np.float32).reshape(6)
    return row


def build_picture_row(image: bytes, source: str, width: int, height: int) -> dict[str, Any]:
    """Build one row of `pictures`: an encoded crop, the picture that it is cut from, and the size of that in pixels."""
    return {"image": image, "source": source, "width": width, "height": height}


def write_shard(folder: str, file: str, split: Split, rows: Sequence[dict[str, Any]]) -> ShardInfo:
    """Write rows, sorted by group and source, as one Parquet file, atomically; return its entry for the manifest."""
    group = "identity" if "identity" in rows[0] else "source"
    ordered = sorted(rows, key=lambda row: (row[group], row["source"]))
    schema = PICTURES_SCHEMA if group == "source" else SYNTHETIC_FACES_SCHEMA if "view" in ordered[0] else FACES_SCHEMA
    buffer = io.BytesIO()
    # No codec, since the crops are compressed already; then only checksums detect a flipped bit.
    pq.write_table(
        pa.Table.from_pylist(ordered, schema=schema),
        buffer,
        compression="none",
        row_group_size=ROWS_PER_GROUP,
        write_page_checksum=True,
    )
    data = buffer.getvalue()
    storage.write_atomic(storage.join(folder, file), data)
    return ShardInfo(
        file=file,
        split=split,
        rows=len(ordered),
        identities=len({row[group] for row in ordered}),
        bytes=len(data),
        sha256=storage.sha256_hex(data),
    )


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Write the manifest atomically. Write it last: its presence means that the set is complete."""
    storage.write_atomic(storage.join(folder, MANIFEST_NAME), manifest.model_dump_json(indent=1).encode())


def read_manifest(folder: str) -> Manifest:
    """Read the manifest of a folder of shards.

    Raises: InputMissing if there is none, ShardCorrupt if it is not a manifest of this format.
    """
    location = storage.join(folder, MANIFEST_NAME)
    if not storage.exists(folder):
        raise InputMissing(f"{folder}: no such folder of shards; make one with `fusionray prepare INPUT {folder}`")
    if not storage.exists(location):
        raise InputMissing(f"{folder}: has no {MANIFEST_NAME}; run (or finish) `fusionray prepare INPUT {folder}`")
    try:
        return Manifest.model_validate_json(storage.read_bytes(location))
    except ValidationError as error:
        first = error.errors()[0]
        raise ShardCorrupt(
            f"{location}: not a manifest of this format ({'.'.join(map(str, first['loc']))}: {first['msg']}); "
            "prepare the data again into a new folder"
        ) from None


def check_shards(
    folder: str,
    manifest: Manifest,
    *,
    size: int,
    task: ShardTask = "faces",
    template: str | None = None,
    with_parameters: bool = False,
    max_damaged_files: int = 0,
) -> list[str]:
    """Check that shards fit a run, and that each file exists with the length in the manifest.

    `with_parameters`: the run trains on the parameters of synthetic faces. Up to `max_damaged_files` training files
    may be missing or truncated; returns the error of each.

    Raises: ShardMismatch (task, size, template, parameters), ShardCorrupt (missing or truncated file).
    """
    if manifest.task != task:
        raise ShardMismatch(
            f"{folder}: shards hold {manifest.task} (task={manifest.task}) but this run needs {task}; "
            f"prepare again with task={task}, or choose a recipe that trains on {manifest.task}"
        )
    if manifest.size != size:
        raise ShardMismatch(
            f"{folder}: shards hold {manifest.size} px crops but this run needs {size} px; "
            f"prepare again with size={size} or choose a preset for {manifest.size} px"
        )
    if task == "faces" and template is not None and manifest.template != template:
        raise ShardMismatch(
            f"{folder}: shards are aligned to {manifest.template} but this run needs {template}; "
            f"prepare again with template={template}"
        )
    if with_parameters and not manifest.synthetic:
        raise ShardMismatch(
            f"{folder}: holds photographs, which have no parameters of identity and attributes, but this run trains "
            "on them; use shards of synthetic faces (data.shards=synthetic://people=500)"
        )
    # One look at the folder: an object store answers a thousand files at once, and each question takes as long.
    sizes = storage.list_folder(folder)
    damaged: list[str] = []
    for shard in manifest.shards:
        found = sizes.get(shard.file)
        if found != shard.bytes:
            state = "is missing" if found is None else f"has {found} bytes, not {shard.bytes}"
            damaged.append(f"{folder}/{shard.file}: {state}; run `fusionray prepare` again into {folder}")
            if shard.split != "train" or len(damaged) > max_damaged_files:
                raise ShardCorrupt(damaged[-1])
    return damaged


def matrix_from_column(column: pa.Array | pa.ChunkedArray) -> NDArray[np.float32]:
    """Convert a column of equally long float lists to an array [N,K] float32."""
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values: NDArray[np.float32] = combined.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(len(combined), -1)

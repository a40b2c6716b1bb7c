from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fusionray.data.shards import (
    MANIFEST_NAME,
    ROWS_PER_GROUP,
    Manifest,
    build_face_row,
    check_shards,
    matrix_from_column,
    read_manifest,
    write_shard,
)
from fusionray.errors import InputMissing, ShardCorrupt, ShardMismatch
from tests.support.tiny_shards import LANDMARKS_52, SIZE, write_tiny_shards


def test_rows_read_back_with_plain_pyarrow(tmp_path: Path) -> None:
    rows = [
        build_face_row(f"image {i}".encode(), "b" if i % 2 else "a", LANDMARKS_52 + i, f"src/{i}") for i in range(5)
    ]
    info = write_shard(str(tmp_path), "shard-00000.parquet", "train", rows)
    table = pq.read_table(tmp_path / "shard-00000.parquet")
    assert table.column_names == ["image", "identity", "landmarks", "source", "region"]
    assert table.schema.field("landmarks").type == pa.list_(pa.list_(pa.float32(), 2), 5)
    # The rows of a person are adjacent.
    assert table.column("identity").to_pylist() == ["a", "a", "a", "b", "b"]
    assert table.column("image").to_pylist() == [b"image 0", b"image 2", b"image 4", b"image 1", b"image 3"]
    np.testing.assert_array_equal(
        table.column("landmarks").to_pylist(), np.stack([LANDMARKS_52 + i for i in (0, 2, 4, 1, 3)])
    )
    assert (info.rows, info.identities) == (5, 2)


def test_synthetic_rows_carry_what_generated_them(tmp_path: Path) -> None:
    identity = np.arange(3, dtype=np.float32)
    attributes = np.arange(4, dtype=np.float32) / 7
    view_23 = np.array([[0.5, 0, 0.25], [0, 0.5, 0.125]], np.float32)
    rows = [
        build_face_row(
            b"x",
            "p",
            LANDMARKS_52,
            f"{i}",
            identity_parameters=identity + i,
            attribute_parameters=attributes,
            view_23=view_23,
        )
        for i in range(3)
    ]
    write_shard(str(tmp_path), "s.parquet", "train", rows)
    table = pq.read_table(tmp_path / "s.parquet")
    np.testing.assert_array_equal(
        matrix_from_column(table.column("identity_parameters")), np.stack([identity, identity + 1, identity + 2])
    )
    np.testing.assert_array_equal(matrix_from_column(table.column("attribute_parameters"))[0], attributes)
    np.testing.assert_array_equal(matrix_from_column(table.column("view"))[0].reshape(2, 3), view_23)


def test_the_manifest_entry_of_a_shard_matches_its_file(tmp_path: Path) -> None:
    info = write_shard(str(tmp_path), "s.parquet", "validation", [build_face_row(b"x", "p", LANDMARKS_52, "1")])
    data = (tmp_path / "s.parquet").read_bytes()
    assert info.bytes == len(data)
    assert info.sha256 == hashlib.sha256(data).hexdigest()
    assert info.split == "validation"


def test_the_same_rows_give_the_same_file_whatever_their_order(tmp_path: Path) -> None:
    rows = [build_face_row(bytes([i]), f"p{i % 3}", LANDMARKS_52, f"{i}") for i in range(9)]
    first = write_shard(str(tmp_path), "a.parquet", "train", rows)
    second = write_shard(str(tmp_path), "b.parquet", "train", rows[::-1])
    assert first.sha256 == second.sha256


def test_a_reader_can_take_a_part_of_a_shard(tmp_path: Path) -> None:
    rows = [build_face_row(b"x", "p", LANDMARKS_52, f"{i}") for i in range(ROWS_PER_GROUP + 1)]
    write_shard(str(tmp_path), "s.parquet", "train", rows)
    assert pq.ParquetFile(tmp_path / "s.parquet").num_row_groups == 2


def test_a_manifest_reads_back_equal(tmp_path: Path) -> None:
    written = write_tiny_shards(tmp_path, test_people=3)
    assert read_manifest(str(tmp_path)) == written
    assert written.files("train") == [f"shard-{i:05d}.parquet" for i in range(4)]
    assert written.files("validation") == ["shard-00004.parquet"]
    assert written.files("test") == ["shard-00005.parquet"]


def test_the_digest_depends_on_the_content_and_not_on_the_folder(tmp_path: Path) -> None:
    here, there = write_tiny_shards(tmp_path / "here"), write_tiny_shards(tmp_path / "there")
    other = write_tiny_shards(tmp_path / "other", pictures=5)
    assert here.digest() == there.digest() != other.digest()


def test_sound_shards_are_accepted(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    check_shards(str(tmp_path), manifest, size=SIZE, template="arcface_128")
    check_shards((tmp_path).as_uri(), manifest, size=SIZE)


def test_another_size_is_refused_naming_both(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    with pytest.raises(ShardMismatch, match=r"hold 16 px crops but this run needs 64 px; prepare again with size=64"):
        check_shards(str(tmp_path), manifest, size=64)


def test_another_template_is_refused_naming_both(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    with pytest.raises(ShardMismatch, match=r"aligned to arcface_128 but this run needs ffhq_512"):
        check_shards(str(tmp_path), manifest, size=SIZE, template="ffhq_512")


def test_photographs_are_refused_by_runs_that_need_parameters(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    with pytest.raises(ShardMismatch, match="holds photographs, which have no parameters of identity and attributes"):
        check_shards(str(tmp_path), manifest, size=SIZE, with_parameters=True)
    drawn = tmp_path / "drawn"
    check_shards(str(drawn), write_tiny_shards(drawn, synthetic=True), size=SIZE, with_parameters=True)


def test_shards_that_were_made_before_there_was_a_test_split_are_read_with_an_empty_one(tmp_path: Path) -> None:
    tree = write_tiny_shards(tmp_path).model_dump()
    del tree["splits"]["test"]
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(tree))
    manifest = read_manifest(str(tmp_path))
    check_shards(str(tmp_path), manifest, size=SIZE)
    assert manifest.files("test") == []
    assert len(manifest.files("train")) == 4


def test_a_missing_shard_is_refused_by_name(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    (tmp_path / "shard-00002.parquet").unlink()
    with pytest.raises(ShardCorrupt, match=r"shard-00002\.parquet: is missing; run `fusionray prepare` again"):
        check_shards(str(tmp_path), manifest, size=SIZE)


def test_up_to_max_damaged_files_training_files_may_be_missing_and_no_validation_file(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    first, second, *_ = manifest.files("train")
    (tmp_path / first).unlink()
    (error,) = check_shards(str(tmp_path), manifest, size=SIZE, max_damaged_files=1)
    assert f"{first}: is missing" in error
    (tmp_path / second).unlink()
    with pytest.raises(ShardCorrupt, match="is missing"):
        check_shards(str(tmp_path), manifest, size=SIZE, max_damaged_files=1)
    (tmp_path / manifest.files("validation")[0]).unlink()
    with pytest.raises(ShardCorrupt, match="is missing"):
        check_shards(str(tmp_path), manifest, size=SIZE, max_damaged_files=9)


def test_a_truncated_shard_is_refused_by_name(tmp_path: Path) -> None:
    manifest = write_tiny_shards(tmp_path)
    path = tmp_path / "shard-00001.parquet"
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    with pytest.raises(ShardCorrupt, match=rf"shard-00001\.parquet: has {len(data) - 7} bytes, not {len(data)}"):
        check_shards(str(tmp_path), manifest, size=SIZE)


def test_a_missing_folder_is_refused_saying_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"nowhere: no such folder of shards; make one with `fusionray prepare"):
        read_manifest(str(tmp_path / "nowhere"))


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match=r"has no manifest\.json"):
        read_manifest(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"size": "large"}, "size"),
        ({"colour": 1}, "colour"),
        ({"format_version": 2}, "format_version"),
        ({"shards": [{}]}, r"shards\.0\.file"),
    ],
)
def test_a_manifest_of_another_format_is_refused_naming_the_key(
    tmp_path: Path, change: dict[str, object], complaint: str
) -> None:
    manifest: Manifest = write_tiny_shards(tmp_path)
    tree = {**manifest.model_dump(), **change}
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(tree))
    with pytest.raises(ShardCorrupt, match=rf"manifest\.json: not a manifest of this format \({complaint}"):
        read_manifest(str(tmp_path))


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    write_tiny_shards(tmp_path)
    (tmp_path / MANIFEST_NAME).write_bytes((tmp_path / MANIFEST_NAME).read_bytes()[:100])
    with pytest.raises(ShardCorrupt, match=r"manifest\.json: not a manifest"):
        read_manifest(str(tmp_path))

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fusionray.bundle.bundle import bundle_hash, read_bundle, write_bundle
from fusionray.bundle.description import BundleDescription, describe_tensors
from fusionray.errors import BundleInvalid
from tests.support.blend_bundle import write_blend_bundle
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny, write_tiny_bundle


def test_a_written_bundle_is_read_back_unchanged(tmp_path: Path) -> None:
    written = write_tiny_bundle(tmp_path / "bundle")
    read = read_bundle(tmp_path / "bundle")
    assert read == written
    assert sorted(os.listdir(read.folder)) == ["bundle.json", "generator.onnx", "identity.onnx"]
    assert set(read.description.files) == {"generator.onnx", "identity.onnx"}


def test_the_hash_depends_on_the_content_and_not_on_the_folder(tmp_path: Path) -> None:
    first = write_tiny_bundle(tmp_path / "one")
    shutil.copytree(first.folder, tmp_path / "two")
    assert bundle_hash(read_bundle(tmp_path / "two")) == bundle_hash(first)
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity(seed=1)}
    other = write_bundle(tmp_path / "three", files, describe_tiny())
    assert bundle_hash(other) != bundle_hash(first)


@pytest.mark.parametrize("name", ["generator.onnx", "identity.onnx"])
def test_a_changed_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    data = bytearray((bundle.folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle.folder / name).write_bytes(data)
    with pytest.raises(BundleInvalid, match=f"{name}: sha256 is .*copy or export"):
        read_bundle(bundle.folder)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    bundle.identity_path.unlink()
    with pytest.raises(BundleInvalid, match=r"identity\.onnx: .*missing"):
        read_bundle(bundle.folder)


def test_a_folder_without_a_description_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match=r"no bundle\.json"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("format_version", 3, "format_version"),
        ("colour", "green", "colour"),
        ("size", 0, "size"),
        ("files", {"generator.onnx": "0"}, "lists no identity.onnx"),
        ("files", {"generator.onnx": "0", "identity.onnx": "0", "../outside": "0"}, "'../outside' cannot be the name"),
    ],
)
def test_an_invalid_description_is_refused(tmp_path: Path, key: str, value: object, complaint: str) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    path = bundle.folder / "bundle.json"
    tree = json.loads(path.read_text())
    files = tree["files"] if key == "files" else {}
    # Known names keep their true hashes, so that only the fault of the case is met.
    tree[key] = {name: files.get(name, digest) for name, digest in value.items()} if isinstance(value, dict) else value
    path.write_text(json.dumps(tree))
    with pytest.raises(BundleInvalid, match=complaint):
        read_bundle(bundle.folder)


def test_truncated_json_is_refused(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    path = bundle.folder / "bundle.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BundleInvalid, match=r"bundle\.json: not a description"):
        read_bundle(bundle.folder)


def test_writing_again_replaces_the_bundle_and_leaves_no_other_files(tmp_path: Path) -> None:
    write_tiny_bundle(tmp_path / "bundle")
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity(seed=7)}
    newer = write_bundle(tmp_path / "bundle", files, describe_tiny())
    assert read_bundle(tmp_path / "bundle") == newer
    assert os.listdir(tmp_path) == ["bundle"]


def test_a_failed_write_leaves_the_earlier_bundle_whole(tmp_path: Path) -> None:
    earlier = write_tiny_bundle(tmp_path / "bundle")
    files = {"generator.onnx": build_generator(), "identity.onnx": tmp_path / "not-there.onnx"}
    with pytest.raises(FileNotFoundError):
        write_bundle(tmp_path / "bundle", files, describe_tiny())
    assert read_bundle(tmp_path / "bundle") == earlier
    assert os.listdir(tmp_path) == ["bundle"]


def test_files_can_be_given_as_paths(tmp_path: Path) -> None:
    source = tmp_path / "export.onnx"
    source.write_bytes(build_identity())
    bundle = write_bundle(
        tmp_path / "bundle", {"generator.onnx": build_generator(), "identity.onnx": source}, describe_tiny()
    )
    assert read_bundle(bundle.folder) == bundle


def test_a_folder_with_other_content_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "diary.txt").write_text("dear diary")
    with pytest.raises(BundleInvalid, match="left alone"):
        write_tiny_bundle(tmp_path / "home")
    assert (tmp_path / "home" / "diary.txt").read_text() == "dear diary"


@pytest.mark.parametrize("name", ["../generator.onnx", "bundle.json", "a/b", ""])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    files = {"generator.onnx": b"", "identity.onnx": b"", name: b""}
    with pytest.raises(BundleInvalid, match="plain file name"):
        write_bundle(tmp_path / "bundle", files, describe_tiny())
    assert os.listdir(tmp_path) == []


def test_both_models_are_required(tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match=r"needs identity\.onnx"):
        write_bundle(tmp_path / "bundle", {"generator.onnx": b""}, describe_tiny())


def test_an_empty_value_range_is_refused() -> None:
    tree = describe_tiny().model_dump()
    tree["tensors"] = {"generator.onnx": {"target": {"meaning": "picture", "shape": [1], "minimum": 1, "maximum": 1}}}
    with pytest.raises(ValueError, match="must lie below"):
        BundleDescription.model_validate(tree)


@pytest.mark.parametrize("length", [511, "L"])
def test_a_source_without_a_length_or_shorter_than_an_embedding_is_refused(tmp_path: Path, length: int | str) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    assert bundle.source_length == 512
    tree = bundle.description.model_dump()
    tree["tensors"]["generator.onnx"]["source"]["shape"] = ("N", length)
    with pytest.raises(BundleInvalid, match=f"'source' of generator.onnx ends in {length}"):
        _ = replace(bundle, description=BundleDescription.model_validate(tree)).source_length


def test_the_described_tensors_state_their_ranges() -> None:
    tensors = describe_tensors(64, -1.0, 1.0)["generator.onnx"]
    assert (tensors["target"].minimum, tensors["output"].maximum) == (-1.0, 1.0)
    assert (tensors["mask"].minimum, tensors["mask"].shape) == (0.0, ("N", 1, 64, 64))


def test_a_bundle_of_face_fusion_does_not_write_its_task(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    assert "task" not in json.loads((bundle.folder / "bundle.json").read_text())
    assert read_bundle(bundle.folder).description.task == "face_fusion"


def test_a_bundle_of_another_task_names_it_and_has_no_fields_about_faces(tmp_path: Path) -> None:
    written = write_blend_bundle(tmp_path / "bundle")
    read = read_bundle(written.folder)
    assert read == written
    assert bundle_hash(read) == bundle_hash(written)
    tree = json.loads((read.folder / "bundle.json").read_text())
    assert tree["task"] == "blend"
    assert not {"template", "identity_template", "embedding"} & tree.keys()
    assert (read.description.inputs, read.description.models) == (("content", "style"), ("generator.onnx",))
    with pytest.raises(BundleInvalid, match="of the task blend, and one of face_fusion is needed here"):
        read.require_task("face_fusion")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"task": "face_fusion"}, "template: a bundle of face fusion names the template"),
        ({"template": "arcface_128"}, "template: is about faces and has no effect on the task blend"),
        ({"tensors": {}}, "needs an 'output' and an input"),
        ({"task": "../models"}, "task"),
    ],
)
def test_a_description_must_fit_its_task(tmp_path: Path, changes: dict[str, object], complaint: str) -> None:
    bundle = write_blend_bundle(tmp_path / "bundle")
    path = bundle.folder / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(BundleInvalid, match=complaint):
        read_bundle(bundle.folder)

"""Bundles at URIs; `file://` goes the way of every object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusionray.bundle import remote
from fusionray.bundle.bundle import Bundle, bundle_hash, read_bundle, write_bundle
from fusionray.errors import BundleInvalid
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.pipeline.model_registry import ModelRegistry
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URI for a bundle; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"file://{tmp_path}/store/bundle"


def write(place: str, seed: int = 0) -> Bundle:
    return write_bundle(
        place, {"generator.onnx": build_generator(), "identity.onnx": build_identity(seed=seed)}, describe_tiny()
    )


def test_a_bundle_is_copied_once_for_each_content(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(place)
    assert first.folder.is_relative_to(tmp_path / "cache")
    assert bundle_hash(first) == bundle_hash(read_bundle(tmp_path / "store" / "bundle"))
    second = write(place, seed=1)
    assert second.folder != first.folder
    monkeypatch.setattr(remote.storage, "copy", None)
    assert read_bundle(place) == second
    assert [path.name for path in (tmp_path / "cache" / "fusionray" / "bundles").iterdir() if path.name[0] == "."] == []


def test_a_replaced_bundle_has_no_file_of_the_one_before(place: str, tmp_path: Path) -> None:
    write(place)
    (tmp_path / "store" / "bundle" / "generator.fp16.onnx").write_bytes(b"of the bundle before")
    write(place, seed=1)
    names = sorted(path.name for path in (tmp_path / "store" / "bundle").iterdir())
    assert names == ["bundle.json", "generator.onnx", "identity.onnx"]


def test_what_is_no_bundle_or_lacks_a_file_is_one_line_and_leaves_nothing(place: str, tmp_path: Path) -> None:
    with pytest.raises(BundleInvalid, match=r"store/bundle: is not a bundle \(no bundle\.json\)"):
        read_bundle(place)
    store = tmp_path / "store" / "bundle"
    write(place)
    (store / "notes.txt").write_text("of somebody")
    (store / "bundle.json").rename(store / "other.json")
    with pytest.raises(BundleInvalid, match="has content that is not a bundle, and is left alone"):
        write(place)
    (store / "other.json").rename(store / "bundle.json")
    (store / "identity.onnx").unlink()
    cache = tmp_path / "cache" / "fusionray" / "bundles"
    for folder in cache.iterdir():
        folder.rename(tmp_path / "moved")
    with pytest.raises(BundleInvalid, match=r"lists identity\.onnx, but it is missing"):
        read_bundle(place)
    assert list(cache.iterdir()) == []


def test_a_service_follows_a_bundle_that_is_replaced(place: str) -> None:
    before = write(place)
    registry = ModelRegistry(ServeConfig(models=(ModelConfig(bundle=place),)))
    (version,) = registry.versions()
    assert (version.location, version.bundle) == (place, bundle_hash(before))
    assert registry.look_up() == {}
    after = write(place, seed=1)
    (changed,) = registry.look_up().values()
    assert changed.main.bundle == bundle_hash(after)

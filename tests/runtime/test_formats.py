from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from fusionray.bundle.bundle import bundle_hash, read_bundle
from fusionray.errors import BundleInvalid
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.engines.signature import check_generator
from fusionray.runtime.source_encoding import open_source_encoder
from tests.support.tiny_bundle import build_generator, build_identity

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)


def write_format_1(folder: Path) -> str:
    """Write a bundle of format 1; return the hash that its version computed."""
    folder.mkdir()
    models = {"generator.onnx": build_generator(), "identity.onnx": build_identity()}
    for name, data in models.items():
        (folder / name).write_bytes(data)

    def describe(meaning: str, shape: list[object], minimum: float) -> dict[str, object]:
        return {"meaning": meaning, "shape": shape, "minimum": minimum, "maximum": 1.0}

    picture, source = describe("picture", ["N", 3, 64, 64], 0.0), describe("source", ["N", 512], -1.0)
    tree = {
        "format_version": 1,
        "name": "tiny",
        "size": 64,
        "template": "arcface_128",
        "identity_template": "arcface_112",
        "tensors": {
            "generator.onnx": {
                "source": source,
                "target": picture,
                "output": picture,
                "mask": describe("mask", ["N", 1, 64, 64], 0.0),
            },
            "identity.onnx": {"input": describe("picture", ["N", 3, 112, 112], -1.0), "source": source},
        },
        "licence": "Apache-2.0",
        "lineage": {"data_manifest": "0", "config": {}, "code_version": "0", "metrics": {}},
        "parity": {"tolerance": 1e-4, "largest_difference": 0.0},
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in models.items()},
    }
    (folder / "bundle.json").write_text(json.dumps(tree, indent=1, sort_keys=True))
    return hashlib.sha256(json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_a_bundle_of_format_1_is_read_keeps_its_hash_and_runs(tmp_path: Path) -> None:
    digest = write_format_1(tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    assert bundle.description.format_version == 1
    assert bundle_hash(bundle) == digest
    faces = np.random.default_rng(0).integers(0, 256, (2, 112, 112, 3), dtype=np.uint8)
    targets = np.random.default_rng(1).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    sources = open_source_encoder(bundle, ON_CPU).encode_crops(faces)
    fused = CropFuser(bundle, ON_CPU).fuse(sources, targets)
    wanted = np.rint(np.clip(255 - targets + 127.5 * sources[:, None, None, :3], 0, 255))
    assert np.abs(fused.crops - wanted).max() <= 1


def test_a_missing_precision_is_refused_with_the_available_ones(tmp_path: Path) -> None:
    write_format_1(tmp_path / "bundle")
    with pytest.raises(BundleInvalid, match=r"has no int8 generator \(it has fp32\)"):
        CropFuser(read_bundle(tmp_path / "bundle"), ON_CPU, precision="int8")


def test_a_fixed_batch_that_is_not_described_is_refused(tmp_path: Path) -> None:
    write_format_1(tmp_path / "bundle")
    bundle = read_bundle(tmp_path / "bundle")
    (tmp_path / "frozen.onnx").write_bytes(build_generator(batch=2))
    from fusionray.runtime.engines.factory import open_engine

    with pytest.raises(BundleInvalid, match=r"fixed batch 2 and bundle\.json says N"):
        check_generator(bundle, open_engine(tmp_path / "frozen.onnx", ON_CPU))

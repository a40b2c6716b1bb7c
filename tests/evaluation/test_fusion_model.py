from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fusionray.bundle.bundle import write_bundle
from fusionray.checkpoint.models import load_encoder
from fusionray.errors import BundleInvalid
from fusionray.evaluation.fusion_model import (
    BundleFusionModel,
    ModelInfo,
    TorchFusionModel,
    open_fusion_model,
    resolve_model,
)
from fusionray.export.export import ExportConfig, export
from fusionray.metrics.feature_network import is_same_encoder
from fusionray.metrics.fusion_metrics import Evaluators, FusionMetrics, FusionModel, MetricColumns
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny
from tests.support.tiny_fusion import SEEING, SIZE, build_pairs, save_encoder
from tests.support.tiny_world import TEMPLATE, save_fusion

CPU = torch.device("cpu")


def load(location: Path) -> tuple[FusionModel, ModelInfo]:
    return open_fusion_model(resolve_model(str(location)), tracking_uri=None, device=CPU, threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and the bundle that was exported from it."""
    folder = tmp_path_factory.mktemp("subject")
    save_fusion(folder / "run")
    save_encoder(folder / "evaluator")
    export(ExportConfig(checkpoint=str(folder / "run"), output=str(folder / "bundle")))
    return folder


def measure(models: Path, model: FusionModel) -> MetricColumns:
    evaluators = Evaluators(load_encoder(str(models / "evaluator")).build())
    return FusionMetrics(evaluators, ArcFaceCrop(crop_to_arcface_affine(TEMPLATE)), CPU).compute(model, build_pairs(4))


def test_bundle_and_checkpoint_of_a_model_measure_alike(models: Path) -> None:
    (run, run_facts), (bundle, bundle_facts) = load(models / "run"), load(models / "bundle")
    assert isinstance(run, TorchFusionModel)
    assert isinstance(bundle, BundleFusionModel)
    for name in ("name", "size", "template", "data_digest"):
        assert getattr(run_facts, name) == getattr(bundle_facts, name)
    pairs = build_pairs(4)
    difference = run.fuse(pairs.source, pairs.target).int() - bundle.fuse(pairs.source, pairs.target).int()
    assert difference.abs().max() <= 1  # a value that lies between two levels may be rounded to either
    wanted, found = measure(models, run), measure(models, bundle)
    assert wanted.keys() == found.keys()
    for name, values in wanted.items():
        torch.testing.assert_close(
            torch.from_numpy(found[name]), torch.from_numpy(values), rtol=1e-2, atol=1e-2, equal_nan=True
        )


def test_the_source_encoder_is_exported_with_the_generator(tmp_path: Path) -> None:
    save_fusion(tmp_path / "run", generator=SEEING)
    exported = export(ExportConfig(checkpoint=str(tmp_path / "run"), output=str(tmp_path / "bundle")))
    assert exported.source_length == SEEING.source_length
    random = torch.Generator().manual_seed(0)
    source, target = (torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=random) for _ in range(2))
    run, bundle = (load(tmp_path / name)[0] for name in ("run", "bundle"))
    assert (run.fuse(source, target).int() - bundle.fuse(source, target).int()).abs().max() <= 1
    assert not torch.equal(bundle.fuse(source, target), bundle.fuse(source.flip(2), target))
    face = torch.rand(2, 3, 112, 112, generator=random) * 2 - 1
    torch.testing.assert_close(run.embed(face), bundle.embed(face), rtol=1e-4, atol=1e-5)


def test_the_encoder_of_a_bundle_is_recognised_as_the_supervising_one(models: Path) -> None:
    bundle, _ = load(models / "bundle")
    assert is_same_encoder(load_encoder(str(models / "run")).build(), [bundle.embed])
    assert not is_same_encoder(load_encoder(str(models / "evaluator")).build(), [bundle.embed])


def test_a_model_fuses_crops_of_eight_bits(models: Path) -> None:
    pairs = build_pairs(4)
    fused = load(models / "run")[0].fuse(pairs.source, pairs.target)
    assert fused.dtype == torch.uint8
    assert fused.shape == pairs.target.shape


def test_a_bundle_of_another_range_is_fed_in_its_own(tmp_path: Path) -> None:
    files = {"generator.onnx": build_generator(SIZE), "identity.onnx": build_identity()}
    # It inverts the target, in 0..1, and tints it by no more than half of a unit vector's entry.
    write_bundle(tmp_path / "bundle", files, describe_tiny(SIZE))
    pairs = build_pairs(4)
    fused = load(tmp_path / "bundle")[0].fuse(pairs.source, pairs.target).int()
    expected = 255 - pairs.target.int()
    tint = (fused - expected).float()
    assert tint.abs().max() <= 128 * 0.5
    inside = (expected > 64) & (expected < 191)
    spread = torch.stack([tint[row, channel][inside[row, channel]].std() for row in range(4) for channel in range(3)])
    assert spread.max() < 1  # the tint is the same everywhere in a channel


def test_a_damaged_folder_is_refused(models: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text("{}")
    with pytest.raises(BundleInvalid, match=r"bundle\.json"):
        load(tmp_path)


def test_a_bundle_is_measured_with_the_skin_that_it_serves(models: Path) -> None:
    bundle, _ = load(models / "bundle")
    assert isinstance(bundle, BundleFusionModel)
    pairs = build_pairs(4, same=0)
    own = bundle.fuse(pairs.source, pairs.target)
    bundle.skin = "target"
    matched = bundle.fuse(pairs.source, pairs.target)
    apart = [(made.float() - pairs.target).mean(dim=(2, 3)).abs().mean() for made in (own, matched)]
    assert apart[1] < 0.95 * apart[0]

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fusionray.checkpoint.models import load_encoder, load_reader
from fusionray.data.decoding import CropDecoder, collate_pairs
from fusionray.data.pairs import SampledPairs
from fusionray.data.shards import read_manifest
from fusionray.data.synthetic import render_true_fusion
from fusionray.evaluation.config import EvaluateConfig, FaceFusionEvalConfig
from fusionray.evaluation.dataset import EvalDataset, load_dataset
from fusionray.evaluation.report.summary import EvalSummary, summarise_evaluation
from fusionray.faces.align import load_template
from fusionray.metrics.fusion_metrics import (
    TRUTH_OVERSAMPLING,
    Evaluators,
    FusionMetrics,
    FusionModel,
    MetricColumns,
    join,
)
from fusionray.metrics.landmarks import CropLandmarks
from fusionray.nets.pixels import to_uint8
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.types import PairBatch
from tests.support.tiny_fusion import SIZE, save_encoder
from tests.support.tiny_world import TEMPLATE, save_reader, write_world

CPU = torch.device("cpu")
PAIRS = 30


class Answering:
    """A model that gives a prepared answer."""

    def __init__(self, answer: Tensor) -> None:
        self.answer = answer

    def fuse(self, source: Tensor, target: Tensor) -> Tensor:
        """Give the answer."""
        return self.answer

    def embed(self, face: Tensor) -> Tensor:
        """Have no encoder."""
        raise AssertionError("nothing is fused from an embedding here")


class Means(nn.Module):
    """Describe pictures by the mean of each channel."""

    def forward(self, picture: Tensor) -> Tensor:
        """Average."""
        return picture.mean(dim=(2, 3))


class Setting:
    """A world, its pairs in one batch, and untrained evaluators."""

    def __init__(self, folder: Path, *, photographs: bool = False) -> None:
        write_world(folder / "shards", photographs=photographs)
        for name, save in (("evaluator", save_encoder), ("reader", save_reader)):
            save(folder / name)
        config = EvaluateConfig(
            model="m",
            data=str(folder / "shards"),
            output="o",
            pairs=PAIRS,
            face_fusion=FaceFusionEvalConfig(gallery_images=2),
            bootstrap_rounds=20,
        )
        self.dataset: EvalDataset = load_dataset(config, read_manifest(config.data))
        decoder = CropDecoder(SIZE, threads=1)
        self.batch: PairBatch = collate_pairs([SampledPairs(self.dataset.crops, self.dataset.plan.pairs)], decoder)
        self.gallery = decoder.decode(self.dataset.crops.select(self.dataset.plan.gallery))
        decoder.close()
        evaluators = Evaluators(
            load_encoder(str(folder / "evaluator")).build(),
            load_reader(str(folder / "reader")),
            Means(),
            CropLandmarks(load_template(TEMPLATE), SIZE),
        )
        self.metrics = FusionMetrics(evaluators, ArcFaceCrop(crop_to_arcface_affine(TEMPLATE)), CPU)

    def measure(self, model: FusionModel) -> MetricColumns:
        return self.metrics.compute(model, self.batch)

    def summarise(self, answer: Tensor, *, with_features: bool = True) -> EvalSummary:
        numbers = np.argsort(self.dataset.plan.gallery)
        described = self.metrics.embed_crops(self.gallery[numbers])
        pairs = self.measure(Answering(answer))
        return summarise_evaluation(
            self.dataset,
            {
                "pairs": (np.arange(PAIRS), pairs),
                "crops": (self.dataset.plan.gallery[numbers], described),
                "clips": (np.empty(0, np.int64), {}),
            },
            with_features=with_features,
            rounds=20,
            seed=0,
        )


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("metrics"))


@pytest.fixture(scope="module")
def truth(setting: Setting) -> Tensor:
    return to_uint8(render_true_fusion(setting.batch, TRUTH_OVERSAMPLING)[0])


def test_the_true_fusion_gets_the_best_of_every_figure(setting: Setting, truth: Tensor) -> None:
    values = setting.summarise(truth).summary.values
    assert values["retrieval_top1"] == values["retrieval_truth"]
    assert values["nearer_to_source"] == values["nearer_to_source_truth"]
    for group in ("pose", "expression", "light"):
        assert values[f"{group}_error"] == values[f"{group}_error_truth"]
    for key in (
        "ssim_to_truth",
        "ssim_gap_closed",
        "sharpness_ratio",
        *(f"{g}_error_ratio" for g in ("pose", "light")),
    ):
        assert values[key] == pytest.approx(1, abs=1e-6), key
    assert values["feature_distance_to_truth"] == pytest.approx(0, abs=1e-6)
    assert values["psnr_to_truth"] == pytest.approx(58.9)
    assert values["fid"] == pytest.approx(values["fid_truth"])
    assert values["kid"] == pytest.approx(values["kid_truth"])
    assert values["seam_step"] == values["seam_step_truth"]


def test_reduced_pictures_differ_only_by_what_the_smaller_size_shows(setting: Setting, truth: Tensor) -> None:
    # A checkerboard of single pixels averages to nothing at half the size.
    board = (torch.arange(SIZE)[:, None] + torch.arange(SIZE)) % 2 * 20 - 10
    rough = (truth.clamp(10, 245).int() + board).to(torch.uint8)
    metrics = setting.metrics
    reduced = FusionMetrics(metrics.evaluators, metrics.face_crop, CPU, compare_size=SIZE // 2)
    whole, half = (each.compute(Answering(rough), setting.batch)["ssim_fused"].mean() for each in (metrics, reduced))
    assert whole < 0.95 < half
    assert reduced.embed_crops(setting.gallery)["embedding"].shape == (len(setting.gallery), 512)


def test_the_unchanged_target_closes_nothing_of_the_gap(setting: Setting) -> None:
    values = setting.summarise(setting.batch.target).summary.values
    assert values["ssim_gap_closed"] == 0
    assert values["ssim_to_truth"] == values["ssim_target"] < 1
    assert values["psnr_to_truth"] == values["psnr_target"]
    assert values["nearer_to_source"] == 0
    assert values["cosine_to_target"] == pytest.approx(1)
    assert values["pose_error"] == values["pose_error_target"] != values["pose_error_truth"]
    assert values["landmark_distance"] == 0
    assert values["face_not_found"] == 0


def test_the_source_as_it_is_has_its_identity_and_not_the_targets_pose(setting: Setting) -> None:
    values = setting.summarise(setting.batch.source).summary.values
    assert values["nearer_to_source"] == 1
    assert values["retrieval_vs_source"] == 1
    assert 0 < values["retrieval_source"] == values["retrieval_top1"]
    assert values["cosine_to_source"] == pytest.approx(1)
    assert values["landmark_distance"] > 0.02
    assert values["ssim_to_truth"] < values["ssim_paste"]


def test_blur_lowers_the_sharpness_ratio_and_noise_has_no_face(setting: Setting, truth: Tensor) -> None:
    soft = nn.functional.avg_pool2d(truth.float(), 3, stride=1, padding=1, count_include_pad=False).to(torch.uint8)
    assert setting.summarise(soft).summary.values["sharpness_ratio"] < 0.9
    noise = torch.randint(0, 256, truth.shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    values = setting.summarise(noise).summary.values
    assert values["face_not_found"] > 0.5
    assert values["sharpness_ratio"] > 2
    assert values["fid"] > 2 * values["fid_truth"]
    assert values["kid"] > values["kid_truth"]


def test_every_figure_over_pairs_lies_in_its_interval(setting: Setting, truth: Tensor) -> None:
    summary = setting.summarise(torch.where(torch.arange(PAIRS)[:, None, None, None] % 3 > 0, truth, 0)).summary
    for key in ("retrieval_top1", "ssim_to_truth", "ssim_gap_closed", "sharpness_ratio", "pose_error_ratio"):
        low, high = summary.intervals[key]
        assert low <= summary.values[key] <= high
        assert low < high
    assert "fid" not in summary.intervals


def test_without_a_feature_network_distributions_are_compared_by_embeddings(setting: Setting, truth: Tensor) -> None:
    values = setting.summarise(truth, with_features=False).summary.values
    assert {"fid_embedding", "kid_embedding", "fid_embedding_truth"} <= values.keys()
    assert not {"fid", "kid"} & values.keys()


def test_photographs_are_measured_by_what_needs_no_truth(tmp_path: Path) -> None:
    setting = Setting(tmp_path, photographs=True)
    verdict = setting.summarise(setting.batch.target)
    values = verdict.summary.values
    assert values["nearer_to_source"] == 0
    assert values["landmark_distance"] == 0
    assert {"retrieval_top1", "cosine_to_source", "verification_auc", "fid", "held_out_pairs"} <= values.keys()
    assert not [key for key in values if key.startswith(("ssim", "pose", "sharpness", "fairness")) or "truth" in key]


def test_scores_of_pairs_average_to_the_figures(setting: Setting) -> None:
    verdict = setting.summarise(setting.batch.source)
    assert verdict.scores["ssim_to_truth"].shape == (PAIRS,)
    assert verdict.summary.values["ssim_to_truth"] == pytest.approx(verdict.scores["ssim_to_truth"].mean())


def test_scores_that_only_some_parts_have_are_unknown_in_the_others() -> None:
    rendered = {"flicker": np.float32([1, 2]), "flicker_truth": np.float32([3, 4])}
    recorded = {"flicker": np.float32([5])}
    for parts, flicker, truth in (
        ((rendered, recorded), [1, 2, 5], [3, 4, np.nan]),
        ((recorded, {}, rendered), [5, 1, 2], [np.nan, 3, 4]),
    ):
        found = join(parts)
        np.testing.assert_array_equal(found["flicker"], np.float32(flicker))
        np.testing.assert_array_equal(found["flicker_truth"], np.float32(truth))
    assert join([]) == {}

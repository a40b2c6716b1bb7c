"""Skin of faces and around them: what the renderer drew, what a parser's region says, and steps between the two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fusionray.data.synthetic import render_true_fusion
from fusionray.metrics.fusion_metrics import measure_skin
from fusionray.metrics.skin_parts import SkinParts, find_skin_parts, part_region
from fusionray.nets.pixels import to_uint8
from fusionray.types import PairBatch
from tests.support.tiny_fusion import build_pairs

SIZE, COUNT = 64, 40


@pytest.fixture(scope="module")
def batch() -> PairBatch:
    """Pairs whose crops show a bit more than an aligned face: necks, too."""
    drawn = build_pairs(COUNT, same=0, size=SIZE)
    assert drawn.truth is not None
    view = torch.tensor([[0.6, 0.0, 0.2], [0.0, 0.6, 0.28]]).expand(COUNT, 2, 3)
    truth = replace(drawn.truth, view=view)
    own = replace(truth, source_identity=truth.target_identity)
    target = to_uint8(render_true_fusion(replace(drawn, truth=own))[0])
    return replace(drawn, truth=truth, target=target)


@pytest.fixture(scope="module")
def truth(batch: PairBatch) -> Tensor:
    return to_uint8(render_true_fusion(batch)[0])


@pytest.fixture(scope="module")
def skin(batch: PairBatch) -> list[SkinParts]:
    found = find_skin_parts(batch)
    assert found is not None
    return found


def measure(batch: PairBatch, truth: Tensor, fused: Tensor, skin: list[SkinParts] | None) -> dict[str, float]:
    """Return ratio of steps, and the mean of other columns."""
    columns = measure_skin({"source": batch.source, "target": batch.target, "truth": truth, "fused": fused}, skin)
    means = {name: float(np.nanmean(values)) for name, values in columns.items()}
    for kind in ("skin", "edge"):
        means[kind] = means[f"{kind}_step_fused"] / means[f"{kind}_step_fused_target"]
    return means


def test_rendered_faces_and_necks_lie_apart_and_in_their_places(skin: list[SkinParts]) -> None:
    assert not any((each.face & each.around).any() for each in skin)
    assert min(each.face.sum() for each in skin) > 300
    with_neck = [each for each in skin if each.around.sum() > 40]
    assert len(with_neck) > COUNT // 2
    rows = np.arange(SIZE)[:, None]
    for each in with_neck:
        assert (rows * each.around).sum() / each.around.sum() > (rows * each.face).sum() / each.face.sum()


def test_a_true_fusion_has_the_steps_of_its_target_though_it_changes_all_skin(
    batch: PairBatch, truth: Tensor, skin: list[SkinParts]
) -> None:
    measured = measure(batch, truth, truth, skin)
    assert measured["skin"] == pytest.approx(1, abs=0.2)
    assert measured["edge"] == pytest.approx(1, abs=0.25)
    assert measured["unchanged_skin_share"] == 0
    assert measured["skin_step_fused"] == measured["skin_step_truth"]


def test_a_face_on_the_targets_neck_is_a_seam_and_part_of_the_skin_unchanged(
    batch: PairBatch, truth: Tensor, skin: list[SkinParts]
) -> None:
    face = torch.from_numpy(np.stack([each.face for each in skin]))[:, None]
    whole, pasted = (measure(batch, truth, made, skin) for made in (truth, torch.where(face, truth, batch.target)))
    assert pasted["skin"] > whole["skin"] + 0.3
    assert pasted["edge"] > whole["edge"] + 0.3
    assert 0 < pasted["unchanged_skin_share"] < 0.5
    assert measure(batch, truth, batch.target, skin)["unchanged_skin_share"] == 1


def test_the_region_of_a_photograph_is_parted_at_the_usual_outline(batch: PairBatch) -> None:
    region = torch.zeros(COUNT, 1, SIZE, SIZE, dtype=torch.uint8)
    region[:, :, 4:, 8:56] = 255
    region[:, :, 20:30, 20:30] = 100  # behind hair
    found = find_skin_parts(replace(batch, truth=None, region=region))
    assert found is not None
    for each in found:
        assert (each.face | each.around).sum() == 60 * 48 - 100
        assert each.face[32, 32]
        assert not each.face[4:6].any()
        assert not each.face[60:].any()
        assert each.around[5, 32]
    assert find_skin_parts(replace(batch, truth=None)) is None


def test_skin_that_is_known_is_not_taken_for_hair_of_its_colour() -> None:
    # A light face under light hair becomes dark; the hair stays.
    target = torch.full((1, 3, SIZE, SIZE), 200, dtype=torch.uint8)
    fused = target.clone()
    fused[:, :, 16:] = 90
    face, around = np.zeros((2, SIZE, SIZE), bool)
    face[16:48], around[48:] = True, True
    crops = {"source": target, "target": target, "fused": fused}
    guessed, known = (measure_skin(crops, each) for each in (None, [SkinParts(face, around)]))
    assert guessed["skin_step_fused"][0] > 20
    assert known["skin_step_fused"][0] == 0
    assert known["edge_step_fused"][0] == 0


def test_a_source_has_the_steps_of_its_own_skin() -> None:
    region = torch.full((1, 1, SIZE, SIZE), 255, dtype=torch.uint8)
    region[:, :, 20:40] = 0
    (own,) = part_region(region)
    plain = torch.full((1, 3, SIZE, SIZE), 120, dtype=torch.uint8)
    source = torch.where(torch.from_numpy(own.face), 220, plain)
    whole = part_region(torch.full_like(region, 255))
    crops = {"source": source, "target": plain, "fused": plain}
    columns = measure_skin(crops, whole, [own])
    assert columns["skin_step_source"][0] > 20
    assert columns["edge_step_source"][0] > 20
    assert columns["skin_step_fused"][0] == 0
    assert measure_skin(crops, whole).keys() == columns.keys() - {"skin_step_source", "edge_step_source"}

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fusionray.checkpoint.evaluators import EvaluatorPaths
from fusionray.errors import InputMissing
from fusionray.metrics.attribute_reader import READINGS
from fusionray.metrics.feature_network import FeatureNetwork, FeaturesConfig, is_same_encoder
from fusionray.nets.identity import IdentityEncoder
from tests.evaluation.materials import Brightest, save_script
from tests.support.tiny_fusion import ENCODER, SIZE, save_encoder
from tests.support.tiny_world import TEMPLATE, save_reader

CPU = torch.device("cpu")


class PixelCount(nn.Module):
    """Describe a picture by its number of pixels."""

    def forward(self, picture: Tensor) -> Tensor:
        """Give [N,3]."""
        return torch.ones_like(picture).sum(dim=(2, 3))


def build_encoder(seed: int) -> IdentityEncoder:
    torch.manual_seed(seed)
    return IdentityEncoder(ENCODER).eval()


def test_evaluators_are_built_from_their_paths(tmp_path: Path) -> None:
    save_encoder(tmp_path / "evaluator")
    save_reader(tmp_path / "reader")
    places = EvaluatorPaths(str(tmp_path / "evaluator"), str(tmp_path / "reader"), None, with_landmarks=True)
    evaluators = places.build(CPU, template=TEMPLATE, size=SIZE)
    assert not evaluators.encoder.training
    assert evaluators.reader is not None
    assert evaluators.reader.names == READINGS
    assert evaluators.landmarks is not None
    alone = EvaluatorPaths(str(tmp_path / "evaluator"), None, None, with_landmarks=False).build(
        CPU, template=TEMPLATE, size=9
    )
    assert (alone.reader, alone.features, alone.landmarks) == (None, None, None)


def test_the_users_network_gets_pictures_in_its_own_range_and_size(tmp_path: Path) -> None:
    path = save_script(Brightest(), tmp_path / "brightest.pt")
    white = torch.ones(2, 3, 8, 8)
    assert FeatureNetwork(FeaturesConfig(file=path))(white).tolist() == [[1, 1, 1]] * 2
    assert FeatureNetwork(FeaturesConfig(file=path))(-white).tolist() == [[0, 0, 0]] * 2
    assert FeatureNetwork(FeaturesConfig(file=path, low=-2, high=6))(white * 0).tolist() == [[2, 2, 2]] * 2
    path = save_script(PixelCount(), tmp_path / "pixels.pt")
    assert FeatureNetwork(FeaturesConfig(file=path))(white)[0, 0] == 64
    assert FeatureNetwork(FeaturesConfig(file=path, size=12))(white)[0, 0] == 144


def test_a_file_that_is_no_network_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"no archive")
    for name in ("weights.pt", "none.pt"):
        with pytest.raises(InputMissing, match=name) as refusal:
            FeatureNetwork(FeaturesConfig(file=str(tmp_path / name)))
        assert "\n" not in str(refusal.value)


def test_a_network_that_gives_maps_is_refused(tmp_path: Path) -> None:
    path = save_script(nn.Conv2d(3, 2, 3), tmp_path / "maps.pt")
    with pytest.raises(InputMissing, match=r"must return \[N,F\]"), torch.no_grad():
        FeatureNetwork(FeaturesConfig(file=path))(torch.zeros(2, 3, 8, 8))


def test_an_encoder_is_known_by_what_it_computes() -> None:
    encoder, copy, other = build_encoder(1), build_encoder(1), build_encoder(2)
    assert is_same_encoder(encoder, [other, copy])
    assert not is_same_encoder(encoder, [other])

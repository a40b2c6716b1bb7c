from __future__ import annotations

import pytest
import torch

from fusionray.config import load_config
from fusionray.nets.identity import IdentityEncoder, IdentityEncoderConfig
from fusionray.recipes.identity import IdentityRecipeConfig
from fusionray.training.config import TrainConfig

SMALL = IdentityEncoderConfig(channels=(8, 8, 16, 16), blocks=(1, 1, 2, 1))


def test_embeddings_have_512_entries_and_unit_length() -> None:
    torch.manual_seed(0)
    encoder = IdentityEncoder(SMALL).eval()
    with torch.no_grad():
        embedding = encoder(torch.rand(3, 3, 112, 112) * 2 - 1)
    assert embedding.shape == (3, 512)
    torch.testing.assert_close(embedding.norm(dim=1), torch.ones(3))


def test_an_evaluated_row_does_not_depend_on_its_batch() -> None:
    torch.manual_seed(0)
    encoder = IdentityEncoder(SMALL).eval()
    face = torch.rand(3, 3, 112, 112) * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(encoder(face)[1:2], encoder(face[1:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
def test_every_stem_stride_fits_the_head(stride: int) -> None:
    with torch.device("meta"):
        encoder = IdentityEncoder(SMALL.model_copy(update={"stem_stride": stride})).eval()
        assert encoder(torch.empty(2, 3, 112, 112)).shape == (2, 512)


@pytest.mark.parametrize("preset", ["identity-small", "identity-r50"])
def test_every_preset_embeds_on_the_meta_device(preset: str) -> None:
    config = load_config(TrainConfig, preset=preset, overrides=["data.shards=x"])
    assert isinstance(config.recipe, IdentityRecipeConfig)
    with torch.device("meta"):
        encoder = IdentityEncoder(config.recipe.encoder).eval()
        assert encoder(torch.empty(1, 3, 112, 112)).shape == (1, 512)


def test_identity_r50_has_the_parameters_of_its_model() -> None:
    config = load_config(TrainConfig, preset="identity-r50", overrides=["data.shards=x"])
    assert isinstance(config.recipe, IdentityRecipeConfig)
    with torch.device("meta"):
        encoder = IdentityEncoder(config.recipe.encoder)
    # IResNet-50 of insightface: 43.6 M.
    assert sum(parameter.numel() for parameter in encoder.parameters()) == pytest.approx(43.6e6, rel=0.01)


def test_stages_and_their_depths_must_match() -> None:
    with pytest.raises(ValueError, match="same number of stages"):
        IdentityEncoderConfig(channels=(8, 8), blocks=(1,))


def test_features_are_the_maps_that_the_embedding_is_made_of() -> None:
    torch.manual_seed(0)
    encoder = IdentityEncoder(SMALL).eval()
    face = torch.rand(2, 3, 112, 112) * 2 - 1
    with torch.no_grad():
        maps = encoder.features(face)
        embedded = encoder.embedding_norm(encoder.project(encoder.norm(maps[-1]).flatten(1)))
        torch.testing.assert_close(torch.nn.functional.normalize(embedded), encoder(face))
    assert [tuple(map_NCHW.shape[1:]) for map_NCHW in maps] == [(8, 28, 28), (8, 14, 14), (16, 7, 7), (16, 4, 4)]

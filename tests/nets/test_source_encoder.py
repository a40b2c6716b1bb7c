"""How the source's picture becomes tokens, and how the generator finds in them what it needs."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fusionray.nets.fusion import FusionNetwork, SourceConditioner
from fusionray.nets.identity import IdentityEncoder
from fusionray.nets.source_encoder import (
    NUM_TOKENS,
    TOKEN_GRID,
    SourceAttention,
    SourceConfig,
    SourceEncoder,
    encode_positions,
)
from fusionray.recipes.arcface_crop import crop_to_arcface_affine
from tests.support.tiny_fusion import ENCODER, SEEING

CONFIG = SourceConfig(channels=(4, 4, 8), detail=(2, 2), heads=2)
WIDTH = 6


def build_faces(count: int) -> Tensor:
    return torch.rand(count, 3, 112, 112) * 2 - 1


def build_staring_lookup(view_23: Tensor) -> SourceAttention:
    """Build a lookup in which every place looks at the same place of the source, whatever lies there."""
    lookup = SourceAttention(CONFIG, WIDTH, view_23)
    with torch.no_grad():
        for projection in (lookup.query, lookup.key):
            projection.weight.zero_()
            projection.bias.zero_()
        lookup.locality.fill_(100.0)
    return lookup


def pack(coarse: Tensor, middle: Tensor, fine: Tensor) -> Tensor:
    """Write maps of 14, 28 and 56 px as the tokens of one source."""
    parts = [coarse, torch.pixel_unshuffle(middle, 2), torch.pixel_unshuffle(fine, 4)]
    return torch.cat([part.flatten(2) for part in parts], dim=1).transpose(1, 2).flatten(1)


@pytest.mark.parametrize("count", [1, 3])
def test_a_face_becomes_bounded_tokens_of_its_own(count: int) -> None:
    torch.manual_seed(0)
    encoder, faces = SourceEncoder(CONFIG), build_faces(count) * 100
    with torch.no_grad():
        tokens = encoder(faces)
        alone = torch.cat([encoder(face[None]) for face in faces])
    assert tokens.shape == (count, NUM_TOKENS * CONFIG.token_length)
    assert tokens.abs().max() <= 1
    torch.testing.assert_close(tokens, alone, rtol=1e-4, atol=1e-5)


def test_a_token_holds_what_lies_in_its_cell() -> None:
    torch.manual_seed(0)
    encoder = SourceEncoder(CONFIG)
    for norm in encoder.norms:
        norm.eval()
    face = build_faces(1)
    changed = face.clone()
    changed[:, :, 8 * 5 : 8 * 6, 8 * 9 : 8 * 10] += 1  # the cell in row 5, column 9
    # The norms see the whole picture: they are left out, or every token would change a little.
    for index in range(len(encoder.norms)):
        encoder.norms[index] = torch.nn.Identity()
    with torch.no_grad():
        difference = (encoder(face) - encoder(changed)).abs().reshape(TOKEN_GRID, TOKEN_GRID, -1).sum(dim=2)
    rows, columns = torch.nonzero(difference > 1e-6, as_tuple=True)
    assert divmod(int(difference.argmax()), TOKEN_GRID) == (5, 9)
    assert (rows - 5).abs().max() <= 2
    assert (columns - 9).abs().max() <= 2


def test_details_are_fetched_at_the_position_of_the_face_in_the_crop() -> None:
    torch.manual_seed(0)
    # The face of arcface_112 is the crop of arcface_128 without 8 pixels on the left and right and 16 below.
    lookup = build_staring_lookup(crop_to_arcface_affine("arcface_128"))
    middle, fine = torch.randn(1, 2, 28, 28), torch.randn(1, 2, 56, 56)
    with torch.no_grad():
        _, details = lookup(
            torch.randn(1, WIDTH, 16, 16), pack(torch.randn(1, 8, TOKEN_GRID, TOKEN_GRID), middle, fine)
        )
    torch.testing.assert_close(details[32][:, :, :28, 2:30], middle, rtol=0, atol=1e-3)
    torch.testing.assert_close(details[64][:, :, :56, 4:60], fine, rtol=0, atol=1e-3)


def test_attention_can_fetch_from_elsewhere() -> None:
    torch.manual_seed(0)
    lookup = build_staring_lookup(torch.eye(2, 3))
    middle = torch.randn(1, 2, 28, 28)
    tokens = pack(torch.randn(1, 8, TOKEN_GRID, TOKEN_GRID), middle, torch.randn(1, 2, 56, 56))
    with torch.no_grad():
        # Everybody looks at the cell in row 3, column 11.
        lookup.places_query.copy_(lookup.places_key[3 * TOKEN_GRID + 11].expand_as(lookup.places_query))
        _, details = lookup(torch.randn(1, WIDTH, 16, 16), tokens)
    wanted = middle[:, :, 6:8, 22:24].repeat(1, 1, 16, 16)
    torch.testing.assert_close(details[32], wanted, rtol=0, atol=1e-3)


def test_the_product_of_position_codes_is_largest_for_equal_positions() -> None:
    places = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    codes = encode_positions(places, 24)
    similarity = codes @ codes.T
    assert torch.equal(similarity.argmax(dim=1), torch.arange(50))
    near, far = (codes[0] @ encode_positions(places[:1] + step, 24)[0] for step in (0.02, 0.3))
    assert similarity[0, 0] > near > far


def test_a_source_is_its_embedding_and_then_its_tokens() -> None:
    torch.manual_seed(0)
    identity, network = IdentityEncoder(ENCODER).eval(), FusionNetwork(SEEING).eval()
    face, target = build_faces(2), torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.no_grad():
        source = SourceConditioner(identity, network)(face)
        assert source.shape == (2, SEEING.source_length)
        assert torch.equal(source[:, :512], identity(face))
        torch.testing.assert_close(
            network.generator(source, target).output, network(face, identity(face), target).output
        )


def test_a_generator_without_source_attention_takes_the_embedding_alone() -> None:
    blind = SEEING.model_copy(update={"source": None})
    identity = IdentityEncoder(ENCODER).eval()
    face = build_faces(1)
    with torch.no_grad():
        assert torch.equal(SourceConditioner(identity, FusionNetwork(blind))(face), identity(face))
    assert blind.source_length == 512


@pytest.mark.parametrize(
    ("channels", "detail", "message"), [((4, 4, 12), (2, 2), "multiple of 4 x heads"), ((4, 4, 8), (2, 3), "detail")]
)
def test_widths_that_the_heads_do_not_divide_are_refused(
    channels: tuple[int, int, int], detail: tuple[int, int], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceConfig(channels=channels, detail=detail, heads=2)

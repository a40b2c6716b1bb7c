"""The export of face fusion: two graphs, their description, and crops to calibrate quantized variants.

Shape suffixes: N rows, L length of an encoded source, S crop size.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fusionray.bundle.description import FACE_FUSION, GENERATOR_NAME, IDENTITY_NAME, describe_tensors
from fusionray.data import synthetic
from fusionray.faces.blending.skin import Skin
from fusionray.nets.fusion import FusionNetwork, SourceConditioner
from fusionray.nets.generator import EMBEDDING_LENGTH
from fusionray.nets.identity import IDENTITY_SIZE, IdentityEncoder
from fusionray.nets.pixels import to_float
from fusionray.recipes.arcface_crop import ArcFaceCrop, crop_to_arcface_affine
from fusionray.recipes.bundle_export import BundleExport, GraphExport, noise_pictures


def export_fusion(
    network: FusionNetwork, encoder: IdentityEncoder, template: str, skin: Skin = "source"
) -> BundleExport:
    """Return the graphs of a bundle: the generator, and the network that encodes source faces for it.

    `encoder`: the identity encoder that supervised the training. `template`: that of the training crops. `skin`: whose
    skin fused faces have, unless a request says otherwise.
    """
    generator, conditioner = network.generator, SourceConditioner(encoder, network).eval()
    size, length = generator.config.size, generator.config.source_length

    def draw_pair(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        return draw_sources(random, count, length), noise_pictures(random, count, size)

    def draw_face(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        return (noise_pictures(random, count, IDENTITY_SIZE),)

    @torch.no_grad()
    def make_inputs(crops: Tensor) -> tuple[Tensor, ...]:
        # The crop at half the length of the set away nearly always shows another person.
        targets = to_float(crops)
        face_crop = ArcFaceCrop(crop_to_arcface_affine(template))
        return conditioner(face_crop(targets.roll(len(crops) // 2, 0))), targets

    return BundleExport(
        task=FACE_FUSION,
        graphs=(
            GraphExport(GENERATOR_NAME, generator, ("source", "target"), ("output", "mask"), draw_pair),
            GraphExport(IDENTITY_NAME, conditioner, ("input",), ("source",), draw_face),
        ),
        description={
            "size": size,
            "template": template,
            "skin": skin,
            "tensors": describe_tensors(size, -1.0, 1.0, source_length=length),
        },
        make_inputs=make_inputs,
        draw_fallback=lambda count, seed: render_faces(count, size, seed),
        fallback_name="synthetic faces",
    )


def draw_sources(random: np.random.Generator, count: int, length: int) -> Tensor:
    """Draw random encoded sources [N,L]: embeddings of unit length, then tokens in [-1,1]."""
    rows = torch.from_numpy(random.standard_normal((count, length), np.float32))
    embedding, tokens = rows[:, :EMBEDDING_LENGTH], rows[:, EMBEDDING_LENGTH:]
    return torch.cat([F.normalize(embedding), tokens.tanh()], dim=1)


def render_faces(count: int, size: int, seed: int) -> Tensor:
    """Render crops of random synthetic people: uint8 [N,3,S,S]."""
    people, looks = synthetic.sample_identities(count, seed), synthetic.sample_attributes(count, seed)
    # The middle half of the picture, where the renderer puts the face.
    view = torch.tensor([[0.5, 0.0, 0.25], [0.0, 0.5, 0.25]]).expand(count, 2, 3)
    pictures = synthetic.render(people, looks, size, view)
    return (pictures.clamp(0, 1) * 255).round().to(torch.uint8)

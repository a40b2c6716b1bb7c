"""Crop an arcface_112 face from a crop that is aligned to another template, differentiably.

Shape suffixes: N batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fusionray.faces.align import fit_similarity, load_template
from fusionray.nets.identity import IDENTITY_SIZE, IDENTITY_TEMPLATE
from fusionray.recipes.affine import compose_views, unit_to_signed, warp_affine


def crop_to_arcface_affine(template: str, face: str = IDENTITY_TEMPLATE) -> Tensor:
    """Return the affine map [2,3] from the unit square of the face, arcface_112 or another, to that of a crop."""
    matrix = fit_similarity(load_template(face).unit_points, load_template(template).unit_points)
    return torch.from_numpy(matrix).to(torch.float32)


class ArcFaceCrop(nn.Module):
    """Crop the arcface_112 face from crops that are aligned to another template.

    `view_23` maps unit-square coordinates of the 112 px face to unit-square coordinates of the crop.
    """

    view: Tensor

    def __init__(self, view_23: Tensor) -> None:
        super().__init__()
        self.register_buffer("view", view_23.to(torch.float32), persistent=False)
        # Sides of the crop for one of the face; a number of the host, which would wait for one of the device.
        self.scale = float(self.view[:, :2].norm(dim=0).mean())

    def forward(self, image_NCHW: Tensor, jitter_N23: Tensor | None = None) -> Tensor:
        """Return [N,3,112,112] from [N,3,S,S]; `jitter_N23` moves the face within the result (see `jitter_views`)."""
        image = image_NCHW
        # Bilinear sampling reads four pixels, so a picture that is at least twice too large is shrunk first.
        while image.shape[-1] * self.scale >= 2 * IDENTITY_SIZE:
            image = F.avg_pool2d(image, 2)
        view_N23 = self.view[None]
        if jitter_N23 is not None:
            view_N23 = compose_views(view_N23, jitter_N23)
        return warp_affine(image, unit_to_signed(view_N23), IDENTITY_SIZE)

"""A face being painted: its pixels, where each lies on the face, and the light that falls there.

Legend: planes [N, H, W]; colours [N, 3, H, W] or [N, 3, 1, 1], linear light.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Vector
from fusionray.data.synthetic.region import Region

# What painters of features need comes first, what a body growing out of the face continues comes after it.
_FEATURE_PLANES = 9


@dataclass(frozen=True)
class Canvas:
    """All planes of a region of the face in one tensor [N, K, H, W], so that windows of it are cut out in one go.

    Painting changes them in place.
    """

    region: Region
    planes: Tensor

    @classmethod
    def assemble(
        cls,
        region: Region,
        *,
        colour: Tensor,
        light: Tensor,
        x: Tensor,
        y: Tensor,
        visible: Tensor,
        normal: Vector,
        albedo: Tensor,
        t: Tensor,
    ) -> Canvas:
        """Put together the canvas of a bare face: colour, light, face coordinates, unit normal, skin, depth."""
        single = torch.stack((x, y, visible, *normal), dim=1)
        return cls(region, torch.cat((colour, light, single, albedo, t[:, None]), dim=1))

    @property
    def step(self) -> Tensor:
        """Return the width of soft edges [N, 1, 1] in face units."""
        return self.region.step

    @property
    def colour(self) -> Tensor:
        """Return the painted colour [N, 3, H, W]."""
        return self.planes[:, 0:3]

    @property
    def light(self) -> Tensor:
        """Return the light received [N, 3, H, W]."""
        return self.planes[:, 3:6]

    @property
    def x(self) -> Tensor:
        """Return the face coordinate to the image right [N, H, W]."""
        return self.planes[:, 6]

    @property
    def y(self) -> Tensor:
        """Return the face coordinate downwards [N, H, W]."""
        return self.planes[:, 7]

    @property
    def visible(self) -> Tensor:
        """Return how far the surface faces forward: z of its normal where positive [N, H, W]."""
        return self.planes[:, 8]

    @property
    def normal(self) -> Vector:
        """Return the unit normal of the bare face."""
        return self.planes[:, 9], self.planes[:, 10], self.planes[:, 11]

    @property
    def albedo(self) -> Tensor:
        """Return the bare skin's colour [N, 3, H, W]."""
        return self.planes[:, 12:15]

    @property
    def t(self) -> Tensor:
        """Return the depth of the bare face towards the viewer [N, H, W]."""
        return self.planes[:, 15]

    def paint(self, albedo: Tensor, alpha: Tensor) -> None:
        """Cover the canvas with a lit material."""
        self.colour.lerp_(albedo * self.light, alpha[:, None])

    def dim(self, amount: Tensor) -> None:
        """Darken the canvas by a share [N, H, W] of its light, as in a crease."""
        self.colour.mul_((1.0 - amount)[:, None])

    def glow(self, amount: Tensor) -> None:
        """Add white light [N, H, W], as a highlight does."""
        self.colour.add_(amount[:, None])

    def part(self, region: Region, *, whole: bool = False) -> Canvas:
        """Return the canvas of a window of this one's region; without normal, albedo and depth unless `whole`."""
        return Canvas(region, region.read(self.planes if whole else self.planes[:, :_FEATURE_PLANES]))

    def put(self, part: Canvas) -> None:
        """Take the colours of a part back."""
        part.region.write(self.colour, part.colour)

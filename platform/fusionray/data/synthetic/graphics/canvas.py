"""The canvas on which features are painted: colour, face coordinates and light of every pixel of a face.

Legend: planes [N, H, W]; colours [N, 3, H, W] or [N, 3, 1, 1], linear light.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.geometry import Vector
from fusionray.data.synthetic.graphics.pixel_window import PixelWindow

# The first planes are those that all features need; only the nose needs the others.
_FEATURE_PLANES = 9


@dataclass(frozen=True)
class Canvas:
    """All planes of a window of the face in one tensor [N, K, H, W], so that one copy cuts out a part.

    Painting changes the colour in place.
    """

    window: PixelWindow
    planes: Tensor

    @classmethod
    def assemble(
        cls,
        window: PixelWindow,
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
        """Build the canvas of a bare face: colour, light, face coordinates, unit normal, skin colour, depth."""
        single = torch.stack((x, y, visible, *normal), dim=1)
        return cls(window, torch.cat((colour, light, single, albedo, t[:, None]), dim=1))

    @property
    def edge_width(self) -> Tensor:
        """Return the width of soft edges [N, 1, 1] in face units."""
        return self.window.edge_width

    @property
    def colour(self) -> Tensor:
        """Return the painted colour [N, 3, H, W]."""
        return self.planes[:, 0:3]

    @property
    def light(self) -> Tensor:
        """Return the received light [N, 3, H, W]."""
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
        """Blend a lit material over the canvas, with coverage `alpha` [N, H, W]."""
        self.colour.lerp_(albedo * self.light, alpha[:, None])

    def dim(self, amount: Tensor) -> None:
        """Darken the canvas by a share [N, H, W] of its light, as in a crease."""
        self.colour.mul_((1.0 - amount)[:, None])

    def glow(self, amount: Tensor) -> None:
        """Add white light [N, H, W], as a highlight does."""
        self.colour.add_(amount[:, None])

    def part(self, window: PixelWindow, *, whole: bool = False) -> Canvas:
        """Return a copy of a part of this canvas; without normal, albedo and depth unless `whole`."""
        return Canvas(window, window.read(self.planes if whole else self.planes[:, :_FEATURE_PLANES]))

    def write_back(self, part: Canvas) -> None:
        """Write the colours of a part back into this canvas."""
        part.window.write(self.colour, part.colour)

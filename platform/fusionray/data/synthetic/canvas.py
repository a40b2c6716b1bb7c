"""A face being painted: its pixels, where each lies on the face, and the light that falls there.

Legend: planes [N, H, W]; colours [N, 3, H, W] or [N, 3, 1, 1], linear light.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import Region, Vector


@dataclass
class Canvas:
    """The painted colour of a region, with the face coordinates and the light of every pixel.

    `x`, `y` are face coordinates in the head frame; `visible` is how far the surface faces forward (z of its normal);
    `albedo` the colour of the bare skin; `beyond` the coverage of what sticks out past the head's outline.
    """

    region: Region
    colour: Tensor
    light: Tensor
    albedo: Tensor
    x: Tensor
    y: Tensor
    visible: Tensor
    normal: Vector
    beyond: Tensor

    @property
    def step(self) -> Tensor:
        """Return the width of soft edges [N, 1, 1] in face units."""
        return self.region.step

    def paint(self, albedo: Tensor, alpha: Tensor) -> None:
        """Cover the canvas with a lit material."""
        self.colour = torch.lerp(self.colour, albedo * self.light, alpha[:, None])

    def dim(self, amount: Tensor) -> None:
        """Darken the canvas by a share [N, H, W] of its light, as in a crease."""
        self.colour = self.colour * (1.0 - amount)[:, None]

    def glow(self, amount: Tensor, colour: Tensor | float = 1.0) -> None:
        """Add light, as a highlight does."""
        self.colour = self.colour + amount[:, None] * colour

    def part(self, region: Region) -> Canvas:
        """Return the canvas of a window of this one's region."""
        normal = (region.read(self.normal[0]), region.read(self.normal[1]), region.read(self.normal[2]))
        return Canvas(region, *(region.read(planes) for planes in (self.colour, self.light, self.albedo, self.x, self.y,
                                                                    self.visible)), normal, region.read(self.beyond))

    def put(self, part: Canvas) -> None:
        """Take the colours of a part back."""
        self.colour = part.region.write(self.colour, part.colour)
        self.beyond = part.region.write(self.beyond, part.beyond)

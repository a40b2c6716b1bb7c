"""The relief of the face: hills, folds and wrinkles, as slopes of a height map over the head.

Legend: planes [N, H, W] in head coordinates; row scalars [N, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import is_needed
from fusionray.data.synthetic.graphics.geometry import Vector, bump, ridge
from fusionray.data.synthetic.shapes.person import PersonModel


@dataclass(frozen=True)
class Relief:
    """Slopes of the height over (|x|, y), and the share of ambient light that reaches each point (`openness`)."""

    x: Tensor
    y: Tensor
    slope_x: Tensor
    slope_y: Tensor
    openness: Tensor

    def add_hills(self, hills: Tensor) -> None:
        """Add hills and hollows by their coefficients [N, K, 10]."""
        x_squared, y_squared = self.x.square(), self.y.square()
        for coefficients in hills[..., None, None].unbind(1):
            base, of_xx, of_x, of_yy, of_y, steep_x, x, steep_y, y, shade = coefficients.unbind(1)
            hill = (x_squared * of_xx).add_(base).addcmul_(self.x, of_x).addcmul_(y_squared, of_yy)
            hill.addcmul_(self.y, of_y).clamp_(min=0.0)
            self.slope_x.addcmul_((self.x - x).mul_(steep_x), hill)
            self.slope_y.addcmul_((self.y - y).mul_(steep_y), hill)
            if is_needed(shade > 0):
                self.occlude(hill.square_().mul_(shade))

    def cut_groove(self, depth: Tensor, distance: Tensor, half_width: float, fade: Tensor) -> None:
        """Cut a groove where `distance` along |x| is 0; `fade` [N, H, W] in [0, 1] scales it."""
        side = distance / half_width
        profile = side.square().neg_().add_(1.0).clamp_(min=0.0).mul_(fade)
        self.slope_x.addcmul_(side.mul_(profile), 4.0 * depth / half_width)
        self.occlude(profile.square_().mul_((6.0 * depth).clamp(max=0.5)))

    def occlude(self, share: Tensor) -> None:
        """Block a share [N, H, W] of the light."""
        self.openness.mul_(share.neg_().add_(1.0))


def build_relief(person: PersonModel, point: Vector) -> Relief:
    """Build the relief of the whole face, without the nose."""
    x, y = point[0].abs(), point[1]
    relief = Relief(x, y, torch.zeros_like(x), torch.zeros_like(x), torch.ones_like(x))
    relief.add_hills(person.hills)
    _fold_cheeks(person, relief)
    _wrinkle_brow(person, relief)
    return relief


def _fold_cheeks(person: PersonModel, relief: Relief) -> None:
    """Cut the folds from the wings of the nose to the corners of the mouth; age and a smile deepen them."""
    identity, smile = person.identity, person.attributes["smile"]
    top, bottom = person.head.nose_y - 0.08, person.head.mouth_y + 0.10
    along = (relief.y - top).div_(bottom - top)
    start = 0.17 + 0.02 * identity["nose_width"]
    end = 0.36 + 0.035 * identity["mouth_width"] + 0.05 * smile
    curve = (along * (end - start)).add_(start).add_(along - along.square(), alpha=0.05)
    depth = 0.006 + 0.055 * identity["age"] + 0.040 * smile.clamp(min=0.0)
    relief.cut_groove(depth, relief.x - curve, 0.075, ridge(along, 0.45, 0.62))


def _wrinkle_brow(person: PersonModel, relief: Relief) -> None:
    """Add wrinkles across the forehead (age, raised brows) and between the brows (age, furrow)."""
    age, furrow = person.identity["age"], person.attributes["brow_furrow"]
    raised = person.attributes["brow_raise"].clamp(min=0.0)
    middle = person.head.eye_y - 0.52
    wave = torch.sin((relief.y - middle).mul_(62.0).add_(relief.x.square(), alpha=5.0))
    strength = bump(relief.x, relief.y, (0.0, middle), (0.52, 0.22))
    strength.mul_(0.55 * (age - 0.25).clamp(min=0.0) + 0.35 * raised * (0.4 + age))
    relief.slope_y.addcmul_(strength, wave)
    relief.occlude(wave.mul_(0.14).add_(0.14).mul_(strength))
    between = bump(relief.x, relief.y, (0.0, person.head.eye_y - 0.25), (0.30, 0.17))
    relief.cut_groove(0.05 * furrow + 0.012 * age, relief.x - 0.065, 0.04, between)

"""Windows of output pixels: which pixels each layer of each picture needs, and where they lie on the screen.

Legend: N rows, K ellipses; planes [N, H, W]; row scalars [N, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.geometry import invert


@dataclass(frozen=True)
class Frame:
    """The whole output: its size, the coefficients of output -> screen, and the width of soft edges.

    For each named ellipse `extent` holds the pixels that the largest row needs along x and y, and `middle` each row's
    centre in pixels.
    """

    size: int
    forward: tuple[Tensor, ...]
    step: Tensor
    grid: Tensor
    extent: dict[str, tuple[int, int]]
    middle: dict[str, list[tuple[float, float]]]


class Region:
    """A window of the output: one size for all rows, one place for each; knows its pixels' screen coordinates.

    `u`, `v` are planes of screen coordinates; `step` [N, 1, 1] is the width of a pixel in screen units, widened by
    defocus, over which edges are softened. `place` is each row's first column and row, `whole` if all share one.
    """

    def __init__(self, frame: Frame, place: list[tuple[int, int]], width: int, height: int) -> None:
        self.frame, self.step = frame, frame.step
        self.place, self.width, self.height = place, width, height
        a, b, c, d, e, f = frame.forward
        first = torch.tensor(place, dtype=frame.grid.dtype, device=frame.grid.device) / frame.size
        x = frame.grid[:width] + first[:, 0, None, None]
        y = frame.grid[:height, None] + first[:, 1, None, None]
        self.u = a * x + (b * y + c)
        self.v = d * x + (e * y + f)
        self._cuts: list[tuple[int, int]] | None = None
        self._skipped = 0

    def window(self, name: str) -> Region:
        """Return the part of this region that holds a named ellipse of the frame; as large as the largest row needs.

        Layers must be transparent outside their own ellipse, because a row's window may be larger than it.
        """
        width, height = (
            min(have, need) for have, need in zip((self.width, self.height), self.frame.extent[name], strict=True)
        )
        place = [
            (_fit(x, width, left, self.width), _fit(y, height, top, self.height))
            for (x, y), (left, top) in zip(self.frame.middle[name], self.place, strict=True)
        ]
        part = Region(self.frame, place, width, height)
        if width < self.width or height < self.height:
            part._cuts = [(x - left, y - top) for (x, y), (left, top) in zip(place, self.place, strict=True)]
        return part

    def below(self, direction_u: Tensor, direction_v: Tensor, start: float) -> Region:
        """Return the lower rows of a whole region, from the first in which any image has u a + v b > start."""
        a, b, c, d, e, f = self.frame.forward
        by_x, by_y = direction_u * a + direction_v * d, direction_u * b + direction_v * e
        rest = direction_u * c + direction_v * f + by_x.clamp(min=0.0) + 1.5 * self.step
        # Where the view stands on its head the lower rows are not the lower body: keep all of them.
        first = torch.where(by_y > 0, (start - rest) / by_y.clamp(min=1e-6), 0.0 * rest).min()
        skipped = min(self.height - 1, max(0, int(first * self.frame.size)))
        part = Region(self.frame, [(x, y + skipped) for x, y in self.place], self.width, self.height - skipped)
        part._skipped = skipped
        return part

    def read(self, planes: Tensor) -> Tensor:
        """Cut this window out of planes [N, ..., H, W] of the region it was made from; it may share their memory."""
        if self._cuts is None:
            return planes[..., self._skipped :, :]
        return torch.stack(self._pieces(planes))

    def write(self, planes: Tensor, values: Tensor) -> None:
        """Replace this window, in place, in planes [N, ..., H, W] of the region it was made from."""
        if self._cuts is not None:
            for piece, value in zip(self._pieces(planes), values.unbind(0), strict=True):
                piece.copy_(value)
            return
        own = planes[..., self._skipped :, :]
        if own.data_ptr() != values.data_ptr():
            own.copy_(values)

    def _pieces(self, planes: Tensor) -> list[Tensor]:
        """Return each row's window as a view; plain strides, because slicing twice a row takes three times as long."""
        shape = (*planes.shape[1:-2], self.height, self.width)
        stride, start = planes.stride(), planes.storage_offset()
        return [
            planes.as_strided(shape, stride[1:], start + row * stride[0] + top * stride[-2] + left * stride[-1])
            for row, (left, top) in enumerate(self._cuts or ())
        ]


def _fit(middle: float, need: int, start: int, have: int) -> int:
    return min(max(round(middle - 0.5 * need), start), start + have - need)


def whole_region(output_to_screen: Tensor, softness: Tensor, size: int, ellipses: dict[str, Tensor]) -> Region:
    """Return the region of all output pixels, through an affine map [N, 2, 3].

    `ellipses` names what windows will be cut out: centre and half axes (u, v, half_u, half_v) [N, 4] in screen units.
    """
    forward = output_to_screen.flatten(1).t().contiguous()[:, :, None, None].unbind(0)
    determinant = (forward[0] * forward[4] - forward[1] * forward[3]).abs()
    step = (determinant / size**2 + softness * softness).sqrt()
    grid = (torch.arange(size, dtype=step.dtype, device=step.device) + 0.5) / size
    extent, middle = _measure(output_to_screen, step, size, ellipses) if ellipses else ({}, {})
    frame = Frame(size, forward, step, grid, extent, middle)
    return Region(frame, [(0, 0)] * step.shape[0], size, size)


def _measure(
    output_to_screen: Tensor, step: Tensor, size: int, ellipses: dict[str, Tensor]
) -> tuple[dict[str, tuple[int, int]], dict[str, list[tuple[float, float]]]]:
    """Return extent and middle of all ellipses, as Frame wants them; all at once, for one trip to the processor."""
    stacked_NK4 = torch.stack(list(ellipses.values()), dim=1)
    backward = invert(output_to_screen)
    linear = backward[:, None, :, :2]
    middle_NK2 = (linear * stacked_NK4[:, :, None, :2]).sum(dim=3) + backward[:, None, :, 2]
    half_NK2 = stacked_NK4[:, :, 2:] + 1.5 * step
    reach_NK2 = (linear * half_NK2[:, :, None, :]).square().sum(dim=3).sqrt()
    extents = (2.0 * size * reach_NK2).amax(dim=0).ceil().clamp(0, size - 1).to(torch.int64).tolist()
    middles = (middle_NK2 * size).clamp(-size, 2.0 * size).transpose(0, 1).tolist()
    extent = {name: (width + 1, height + 1) for name, (width, height) in zip(ellipses, extents, strict=True)}
    middle = {name: [(x, y) for x, y in rows] for name, rows in zip(ellipses, middles, strict=True)}
    return extent, middle

"""Windows of output pixels: the pixels that each layer needs, and their screen coordinates.

Legend: N rows, K ellipses; planes [N, H, W]; row scalars [N, 1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import host_decides
from fusionray.data.synthetic.graphics.geometry import invert


@dataclass(frozen=True)
class OutputGrid:
    """The whole output: its size, the affine map from output to screen, and the width of soft edges.

    By the name of an ellipse, `extent` holds the pixels that the largest row needs along x and y, and `middle` the
    centre of each row in pixels; both are empty on a GPU.
    """

    size: int
    forward: tuple[Tensor, ...]
    edge_width: Tensor
    grid: Tensor
    extent: dict[str, tuple[int, int]]
    middle: dict[str, list[tuple[float, float]]]


class PixelWindow:
    """A window of the output, of one size for all rows but at its own place in each.

    `u`, `v` are planes of screen coordinates; `edge_width` [N, 1, 1] is the width of soft edges in screen units: a
    pixel, and more with defocus. `place` holds the first column and row of the window in each picture.
    """

    def __init__(self, output: OutputGrid, place: list[tuple[int, int]], width: int, height: int) -> None:
        self.output, self.edge_width = output, output.edge_width
        self.place, self.width, self.height = place, width, height
        a, b, c, d, e, f = output.forward
        x, y = output.grid[:width], output.grid[:height, None]
        if any(corner != (0, 0) for corner in place):
            first = torch.tensor(place, dtype=output.grid.dtype, device=output.grid.device) / output.size
            x, y = x + first[:, 0, None, None], y + first[:, 1, None, None]
        self.u = a * x + (b * y + c)
        self.v = d * x + (e * y + f)
        self._cuts: list[tuple[int, int]] | None = None
        self._skipped = 0

    def part(self, name: str) -> PixelWindow:
        """Return the part of this window around a named ellipse, in the size that the largest row needs.

        The window of a row may be larger than its ellipse, on a GPU as large as this one: layers must be transparent
        outside the ellipse.
        """
        if not host_decides(self.u.device):
            return self
        width, height = (
            min(have, need) for have, need in zip((self.width, self.height), self.output.extent[name], strict=True)
        )
        place = [
            (_fit(x, width, left, self.width), _fit(y, height, top, self.height))
            for (x, y), (left, top) in zip(self.output.middle[name], self.place, strict=True)
        ]
        part = PixelWindow(self.output, place, width, height)
        if width < self.width or height < self.height:
            part._cuts = [(x - left, y - top) for (x, y), (left, top) in zip(place, self.place, strict=True)]
        return part

    def below(self, direction_u: Tensor, direction_v: Tensor, start: float) -> PixelWindow:
        """Return the rows from the first one in which any picture has u * direction_u + v * direction_v > start.

        Only for the window of the whole output.
        """
        if not host_decides(self.u.device):
            return self
        a, b, c, d, e, f = self.output.forward
        by_x, by_y = direction_u * a + direction_v * d, direction_u * b + direction_v * e
        rest = direction_u * c + direction_v * f + by_x.clamp(min=0.0) + 1.5 * self.edge_width
        # In a view that is upside down the lower rows do not show the lower body: keep all rows.
        first = torch.where(by_y > 0, (start - rest) / by_y.clamp(min=1e-6), 0.0 * rest).min()
        skipped = min(self.height - 1, max(0, int(first * self.output.size)))
        part = PixelWindow(self.output, [(x, y + skipped) for x, y in self.place], self.width, self.height - skipped)
        part._skipped = skipped
        return part

    def read(self, planes: Tensor) -> Tensor:
        """Return this window of planes [N, ..., H, W] of the parent window; the result may share their memory."""
        if self._cuts is None:
            return planes[..., self._skipped :, :]
        return torch.stack(self._pieces(planes))

    def write(self, planes: Tensor, values: Tensor) -> None:
        """Write values to this window, in place, in planes [N, ..., H, W] of the parent window."""
        if self._cuts is not None:
            for piece, value in zip(self._pieces(planes), values.unbind(0), strict=True):
                piece.copy_(value)
            return
        own = planes[..., self._skipped :, :]
        if own.data_ptr() != values.data_ptr():
            own.copy_(values)

    def _pieces(self, planes: Tensor) -> list[Tensor]:
        """Return the window of each row as a view; `as_strided` takes a third of the time of two slices."""
        shape = (*planes.shape[1:-2], self.height, self.width)
        stride, start = planes.stride(), planes.storage_offset()
        return [
            planes.as_strided(shape, stride[1:], start + row * stride[0] + top * stride[-2] + left * stride[-1])
            for row, (left, top) in enumerate(self._cuts or ())
        ]


def _fit(middle: float, need: int, start: int, have: int) -> int:
    return min(max(round(middle - 0.5 * need), start), start + have - need)


def whole_output(output_to_screen: Tensor, softness: Tensor, size: int, ellipses: dict[str, Tensor]) -> PixelWindow:
    """Return the window of all output pixels, given the affine map [N, 2, 3] from output to screen.

    `ellipses`: centre and half axes (u, v, half_u, half_v) [N, 4], in screen units, of what `part` can return.
    """
    forward = output_to_screen.flatten(1).t().contiguous()[:, :, None, None].unbind(0)
    determinant = (forward[0] * forward[4] - forward[1] * forward[3]).abs()
    edge_width = (determinant / size**2 + softness * softness).sqrt()
    grid = (torch.arange(size, dtype=edge_width.dtype, device=edge_width.device) + 0.5) / size
    extent, middle = (
        _measure(output_to_screen, edge_width, size, ellipses) if ellipses and host_decides(grid.device) else ({}, {})
    )
    output = OutputGrid(size, forward, edge_width, grid, extent, middle)
    return PixelWindow(output, [(0, 0)] * edge_width.shape[0], size, size)


def _measure(
    output_to_screen: Tensor, edge_width: Tensor, size: int, ellipses: dict[str, Tensor]
) -> tuple[dict[str, tuple[int, int]], dict[str, list[tuple[float, float]]]]:
    """Return `extent` and `middle` of OutputGrid; all ellipses at once."""
    stacked_NK4 = torch.stack(list(ellipses.values()), dim=1)
    backward = invert(output_to_screen)
    linear = backward[:, None, :, :2]
    middle_NK2 = (linear * stacked_NK4[:, :, None, :2]).sum(dim=3) + backward[:, None, :, 2]
    half_NK2 = stacked_NK4[:, :, 2:] + 1.5 * edge_width
    reach_NK2 = (linear * half_NK2[:, :, None, :]).square().sum(dim=3).sqrt()
    extents = (2.0 * size * reach_NK2).amax(dim=0).ceil().clamp(0, size - 1).to(torch.int64).tolist()
    middles = (middle_NK2 * size).clamp(-size, 2.0 * size).transpose(0, 1).tolist()
    extent = {name: (width + 1, height + 1) for name, (width, height) in zip(ellipses, extents, strict=True)}
    middle = {name: [(x, y) for x, y in rows] for name, rows in zip(ellipses, middles, strict=True)}
    return extent, middle

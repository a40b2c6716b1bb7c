"""Pictures of synthetic people: background, far hair, body, head with its features, near hair, glasses, grain.

Legend: N rows, S output size, H x W a window; planes [N, H, W]; colours [N, 3, H, W], linear until the very end.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fusionray.data.synthetic.figure import build_figure, take_rows
from fusionray.data.synthetic.hairstyles import hair_effort
from fusionray.data.synthetic.parameters import ATTRIBUTE_NAMES, IDENTITY_NAMES, Columns
from fusionray.data.synthetic.sampling import sample_attributes, sample_identities
from fusionray.data.synthetic.scene import Scene

# A chunk's planes should stay in the processor's cache.
_CHUNK_PIXELS = 16 * 128 * 128


def render(identity: Tensor, attributes: Tensor, size: int, view: Tensor | None = None) -> Tensor:
    """Render people [N, I] under picture conditions [N, A] -> RGB float32 [N, 3, size, size] in [0, 1].

    `view` [N, 2, 3] maps output unit-square coordinates to picture unit-square coordinates (x right, y down, pixel
    centre (i + 0.5) / size); None shows the whole picture. The true fusion of source and target is the source's
    identity with the target's attributes (and view).

    Raises: ValueError for a wrong shape or a size below 8.
    """
    return render_with_mask(identity, attributes, size, view)[0]


@torch.no_grad()
def render_with_mask(
    identity: Tensor, attributes: Tensor, size: int, view: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Render as `render` does, and return the soft mask [N, 1, size, size] in [0, 1] of what shows the identity.

    The mask holds the skin of the face, its features and the ears, less the hair and glasses before them. The neck is
    outside, though its skin has the identity's tone.

    Raises: ValueError for a wrong shape or a size below 8.
    """
    count = identity.shape[0]
    if attributes.shape[0] != count:
        raise ValueError(f"attributes: {attributes.shape[0]} rows for {count} identities; give one row each")
    if size < 8:
        raise ValueError(f"size: {size} is too small to draw a face; use 8 or more")
    if view is not None and view.shape != (count, 2, 3):
        raise ValueError(f"view: expected shape [{count}, 2, 3], got {list(view.shape)}")
    pictures = torch.empty((count, 3, size, size), dtype=torch.float32, device=identity.device)
    masks = pictures.new_empty((count, 1, size, size))
    chunk = max(1, min(64, _CHUNK_PIXELS // size**2))
    _keep_memory(identity.device)
    order = _similar_first(identity, attributes)
    figure = build_figure(identity[order], attributes[order])
    for start in range(0, count, chunk):
        rows = order[start : start + chunk]
        part = take_rows(figure, start, start + chunk)
        scene = Scene(part, size, None if view is None else view[rows].to(torch.float32))
        pictures[rows], masks[rows, 0] = scene.draw()
    return pictures, masks


def _similar_first(identity: Tensor, attributes: Tensor) -> Tensor:
    """Return an order of rows in which neighbours need the same layers and windows of about one size."""
    who, how = Columns.named(identity, IDENTITY_NAMES), Columns.named(attributes, ATTRIBUTE_NAMES)
    effort = hair_effort(how) + 0.5 * how["scale"]
    effort = effort + 10.0 * (who["moustache"] > 0) + 20.0 * (how["glasses"] > 0.5)
    return torch.argsort(effort[:, 0, 0], stable=True)


def _keep_memory(device: torch.device) -> None:
    """Ask glibc, by its own rule, not to give freed memory back between chunks.

    Freeing one large block raises the thresholds above which it returns memory to the system and below which it
    reuses it; without that a sixth of the time goes into page faults. The block is never touched.
    """
    if device.type == "cpu":
        torch.empty(31 * 2**20, dtype=torch.uint8)


@torch.no_grad()
def landmarks(identity: Tensor, attributes: Tensor) -> Tensor:
    """Return the exact five points [N, 5, 2] in picture unit coordinates (x right, y down).

    Order: eye at the image left, eye at the image right, nose tip, mouth corner at the image left, at the right.
    """
    figure = build_figure(identity, attributes)
    head, mouth = figure.head, figure.mouth
    places = [(x, head.eye_y, head.depth_at(x, head.eye_y)) for x in (-head.eye_x, head.eye_x)]
    places.append(figure.nose.tip)
    y = mouth.corner_y()
    places += [(x, y, head.depth_at(x, y)) for x in (-mouth.half_width, mouth.half_width)]
    points = [figure.pose.to_screen(place) for place in places]
    return torch.stack([figure.pose.to_picture(u, v) for u, v, _ in points], dim=1)


def measure_rate(size: int, seconds: float = 2.0) -> float:
    """Return the images per second that this process renders at `size` on the CPU, pictures and people varied."""
    identity, attributes = sample_identities(64, 0), sample_attributes(64, 0)
    render(identity[:8], attributes[:8], size)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        render(identity, attributes, size)
        done += identity.shape[0]
    return done / (time.perf_counter() - start)

"""Render pictures and regions of synthetic people, and project the five landmarks of their faces.

Shapes: N people, I identity parameters, A attribute parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fusionray.data.synthetic.graphics.device import host_decides
from fusionray.data.synthetic.parameters.definitions import ATTRIBUTE_NAMES, IDENTITY_NAMES, ParameterColumns
from fusionray.data.synthetic.scene import PARTS, Scene
from fusionray.data.synthetic.shapes.hairstyles import hair_drawing_cost
from fusionray.data.synthetic.shapes.person import build_person_model, check_rows, slice_rows

# Small enough that the planes of a chunk stay in the processor's cache.
_CHUNK_PIXELS = 16 * 128 * 128
# Enough to keep a GPU busy; the tensors of a chunk take 1.6 GiB (counted, not measured on one).
_GPU_CHUNK_PIXELS = 16 * 512 * 512


def render(identity: Tensor, attributes: Tensor, size: int, view: Tensor | None = None) -> Tensor:
    """Render identity parameters [N, I] with attribute parameters [N, A] -> RGB float32 [N, 3, size, size] in [0, 1].

    `view` [N, 2, 3] maps output unit-square coordinates to picture unit-square coordinates (x right, y down, pixel
    centre (i + 0.5) / size); None renders the whole picture. The true fusion of source and target has the
    source's identity and the target's attributes and view.

    Raises: ValueError for a wrong shape or a size below 8.
    """
    return render_with_region(identity, attributes, size, view)[0]


def render_with_region(
    identity: Tensor, attributes: Tensor, size: int, view: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Render as `render` does; return also the region float32 [N, 1, size, size] in [0, 1] that shows the face.

    The region covers the skin of the face, its features and the ears, without the hair and glasses in front of them.
    It leaves out the neck, though the skin there has the tone of the identity.

    Raises: ValueError for a wrong shape or a size below 8.
    """
    pictures, regions, _ = _render(identity, attributes, size, view, with_parts=False)
    return pictures, regions


def render_parts(identity: Tensor, attributes: Tensor, size: int, view: Tensor | None = None) -> Tensor:
    """Return the share of each pixel that each of PARTS covers, float32 [N, len(PARTS), size, size]; they sum to 1.

    Raises: ValueError for a wrong shape or a size below 8.
    """
    parts = _render(identity, attributes, size, view, with_parts=True)[2]
    assert parts is not None
    return parts


@torch.no_grad()
def _render(
    identity: Tensor, attributes: Tensor, size: int, view: Tensor | None, *, with_parts: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return pictures, regions of the face, and if asked for the parts."""
    check_rows(identity, attributes)
    count = identity.shape[0]
    if size < 8:
        raise ValueError(f"size: {size} is too small to draw a face; use 8 or more")
    if view is not None and view.shape != (count, 2, 3):
        raise ValueError(f"view: expected shape [{count}, 2, 3], got {list(view.shape)}")
    pictures = torch.empty((count, 3, size, size), dtype=torch.float32, device=identity.device)
    regions = pictures.new_empty((count, 1, size, size))
    parts = pictures.new_empty((count, len(PARTS), size, size)) if with_parts else None
    # A layer is drawn for all rows of a chunk if one of them needs it, so chunks of small pictures are limited too.
    rows_per_chunk = max(1, min(64, _CHUNK_PIXELS // size**2))
    if not host_decides(identity.device):
        rows_per_chunk = max(1, _GPU_CHUNK_PIXELS // size**2)
    _retain_freed_memory(identity.device)
    order = _order_by_cost(identity, attributes)
    model = build_person_model(identity[order], attributes[order])
    for start in range(0, count, rows_per_chunk):
        rows = order[start : start + rows_per_chunk]
        part = slice_rows(model, start, start + rows_per_chunk)
        scene = Scene(part, size, None if view is None else view[rows].to(torch.float32), with_parts=with_parts)
        pictures[rows], regions[rows, 0] = scene.draw()
        if parts is not None and scene.parts is not None:
            parts[rows] = scene.parts
    return pictures, regions, parts


def _order_by_cost(identity_NI: Tensor, attributes_NA: Tensor) -> Tensor:
    """Return an order of rows, int64 [N], in which neighbours need the same layers, and windows of similar size."""
    identity = ParameterColumns.from_tensor(identity_NI, IDENTITY_NAMES)
    attributes = ParameterColumns.from_tensor(attributes_NA, ATTRIBUTE_NAMES)
    cost = hair_drawing_cost(attributes) + 0.5 * attributes["scale"]
    cost = cost + 10.0 * (identity["moustache"] > 0) + 20.0 * (attributes["glasses"] > 0.5)
    return torch.argsort(cost[:, 0, 0], stable=True)


def _retain_freed_memory(device: torch.device) -> None:
    """Make glibc keep freed memory between chunks; without this, page faults take a sixth of the rendering time.

    Freeing a block below 32 MiB that was mapped raises glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD: below the first,
    blocks come from the heap; up to the second, freed memory at the end of the heap is not returned to the system.
    Nothing is written to the block.
    """
    if device.type == "cpu":
        torch.empty(31 * 2**20, dtype=torch.uint8)


@torch.no_grad()
def project_landmarks(identity: Tensor, attributes: Tensor) -> Tensor:
    """Return the exact five landmarks, float32 [N, 5, 2] in the unit square: x right, y down.

    pixel = value * size - 0.5. Order: left eye, right eye, nose tip, left and right corner of the mouth, as seen in the
    image.

    Raises: ValueError for a wrong shape.
    """
    model = build_person_model(identity, attributes)
    head, mouth, pose = model.head, model.mouth, model.pose
    head_points = [(x, head.eye_y, head.depth_at(x, head.eye_y)) for x in (-head.eye_x, head.eye_x)]
    head_points.append(model.nose.tip)
    y = mouth.corner_y()
    head_points += [(x, y, head.depth_at(x, y)) for x in (-mouth.half_width, mouth.half_width)]
    screen_points = [pose.to_screen(point) for point in head_points]
    return torch.stack([pose.to_picture(u, v) for u, v, _ in screen_points], dim=1)

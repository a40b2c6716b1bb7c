"""Baselines without a model, which a fusion has to exceed: the unchanged target, a pasted face, the average.

Shape suffixes: N batch, H rows, W columns.
"""

from __future__ import annotations

from torch import Tensor

from fusionray.nets.pixels import elliptic_region


def build_baselines(source_N3HW: Tensor, target_N3HW: Tensor) -> dict[str, Tensor]:
    """Build three pictures [N,3,H,W] by name from each pair of crops, which must be aligned to one template.

    `target`: the unchanged target. `paste`: the source's face in the target, blended by a soft ellipse. `average`:
    the mean of both, pixel by pixel.

    Raises: ValueError if the crops differ in shape.
    """
    if source_N3HW.shape != target_N3HW.shape:
        raise ValueError(f"source crops {list(source_N3HW.shape)} and target crops {list(target_N3HW.shape)} differ")
    difference_N3HW = source_N3HW - target_N3HW
    return {
        "target": target_N3HW,
        "paste": target_N3HW + elliptic_region(target_N3HW) * difference_N3HW,
        "average": target_N3HW + difference_N3HW / 2,
    }

"""What anyone can do without a model: the least that a fusion has to be better than.

Shape suffixes: N batch, H rows, W columns.
"""

from __future__ import annotations

from torch import Tensor

from fusionray.nets.pixels import elliptic_region


def build_baselines(source_N3HW: Tensor, target_N3HW: Tensor) -> dict[str, Tensor]:
    """Make three pictures [N,3,H,W] of each pair of crops that are aligned alike, by name.

    `target`: the target as it is. `paste`: the source's face in the target, through a soft ellipse. `average`: the
    mean of both, pixel by pixel.

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

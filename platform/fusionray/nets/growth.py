"""Begin a network for larger crops with the weights of one for smaller crops: it grows by levels at full resolution.

A level that both networks have works at the same number of pixels in both, so its weights stay what they are and only
its place in the list changes. Levels beyond it begin as the larger network was initialised.

A network grows by as many levels as its crops are doubled: with another number of them its levels would get pictures of
other sizes than those they were trained on.

Source: progressive growing (Karras et al. 2018), section 2; without the fading in of new levels.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from torch import Tensor, nn

from fusionray.nets.discriminator import Discriminator
from fusionray.nets.fusion import FusionNetwork

# The generator's layers at full resolution: those of a smaller network are for its own first level.
FULL_RESOLUTION = ("generator.stem.", "generator.head_norm.", "generator.head.")


def grow_weights(network: nn.Module, weights: Mapping[str, Tensor], size_ratio: Fraction) -> dict[str, Tensor]:
    """Return the weights with which `network` begins, from those of a network of its kind.

    A smaller `FusionNetwork` or `Discriminator` grows; all other weights are returned as they are. The shapes are not
    checked here. `size_ratio`: the side of the network's crops over that of the crops of the weights.

    Raises: ValueError if a network would grow by other levels than its crops do.
    """
    if isinstance(network, FusionNetwork):
        return grow_fusion(network, weights, size_ratio)
    if isinstance(network, Discriminator):
        return grow_discriminator(network, weights, size_ratio)
    return dict(weights)


def grow_fusion(network: FusionNetwork, weights: Mapping[str, Tensor], size_ratio: Fraction) -> dict[str, Tensor]:
    """Let the weights of a fusion network grow by the levels at full resolution that they lack.

    The encoder counts its levels from full resolution, so they move up; the decoder counts from the deepest.
    """
    own = network.state_dict()
    missing = count(own, r"generator\.encoder\.(\d+)\.") - count(weights, r"generator\.encoder\.(\d+)\.")
    if missing <= 0:
        return dict(weights)
    check_growth("generator", "channels", missing, size_ratio)
    kept = {name: value for name, value in weights.items() if not name.startswith(FULL_RESOLUTION)}
    return own | {move(name, "generator.encoder.", missing): value for name, value in kept.items()}


def grow_discriminator(
    network: Discriminator, weights: Mapping[str, Tensor], size_ratio: Fraction
) -> dict[str, Tensor]:
    """Let a discriminator of more scales begin with the weights of one of fewer scales.

    The scales move down, because what was full resolution is half of it now; the new one begins like the next.
    """
    own = network.state_dict()
    missing = count(own, r"scales\.(\d+)\.") - count(weights, r"scales\.(\d+)\.")
    if missing <= 0:
        return dict(weights)
    check_growth("discriminator", "scales", missing, size_ratio)
    first = {name.removeprefix("scales.0."): value for name, value in weights.items() if name.startswith("scales.0.")}
    copies = {f"scales.{scale}.{name}": value for scale in range(missing) for name, value in first.items()}
    return copies | {move(name, "scales.", missing): value for name, value in weights.items()}


def check_growth(network: str, setting: str, missing: int, size_ratio: Fraction) -> None:
    """Check that a network grows by as many levels as its crops are doubled.

    Raises: ValueError.
    """
    if size_ratio != 2**missing:
        raise ValueError(
            f"the {network} has {missing} more levels (recipe.{network}.{setting}), for crops {2**missing} times as "
            f"large, but its crops are {float(size_ratio):g} times as large"
        )


def count(names: Mapping[str, Tensor], pattern: str) -> int:
    """Return how many modules of a list the names have, by a pattern whose group is the index."""
    return 1 + max((int(found[1]) for name in names if (found := re.match(pattern, name))), default=-1)


def move(name: str, prefix: str, places: int) -> str:
    """Return the name of a tensor whose module has moved to a later place in the list `prefix`."""
    if not name.startswith(prefix):
        return name
    index, _, rest = name.removeprefix(prefix).partition(".")
    return f"{prefix}{int(index) + places}.{rest}"

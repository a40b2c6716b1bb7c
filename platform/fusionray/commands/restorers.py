"""Options of verbs that fuse faces: their skin and their size, and a model of the user that sharpens them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionray.runtime.restorer import FaceRestorer, RestorerConfig


def add_skin_option(group: argparse._ArgumentGroup) -> None:
    """Add the option of the skin."""
    group.add_argument(
        "--skin",
        choices=("source", "target"),
        help="whose skin fused faces have: as the model makes it (source), or the colours of the head around it "
        "(target); default: as the bundle says",
    )


def add_pixel_boost_option(group: argparse._ArgumentGroup) -> None:
    """Add the option of the size of large faces."""
    group.add_argument(
        "--pixel-boost",
        type=int,
        choices=(1, 2, 4),
        default=1,
        help="fuse large faces at so many times the model's size; 2 takes four times as long, 4 sixteen times (1)",
    )


def add_restorer_option(group: argparse._ArgumentGroup) -> None:
    """Add the option of the restorer."""
    group.add_argument(
        "--restorer",
        metavar="FILE",
        help="YAML file with the settings of the service's section restorer: sharpen fused faces by a model of yours",
    )


def read_restorer_settings(options: argparse.Namespace) -> RestorerConfig:
    """Read the settings of the restorer; without the option, those of none.

    Raises: ConfigInvalid.
    """
    from fusionray.config import read_yaml, validate
    from fusionray.runtime.restorer import RestorerConfig

    tree = {} if options.restorer is None else read_yaml(Path(options.restorer))
    return validate(RestorerConfig, tree, str(options.restorer))


def read_restorer(options: argparse.Namespace) -> FaceRestorer | None:
    """Load the restorer of the options, if there is one.

    Raises: ConfigInvalid, ProviderUnavailable.
    """
    from fusionray.runtime.restorer import open_restorer

    return open_restorer(read_restorer_settings(options))

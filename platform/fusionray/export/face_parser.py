"""Add a face parser to the bundle of a fusion, which then carries the source's skin over the head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from fusionray.bundle.description import FACE_FUSION, PARSER_NAME, ParserDescription
from fusionray.checkpoint.models import load_face_parser
from fusionray.errors import ConfigInvalid
from fusionray.nets.face_parser import PartShares
from fusionray.recipes.bundle_export import BundleExport, GraphExport, noise_pictures


def add_parser(exported: BundleExport, location: str) -> BundleExport:
    """Add the parser of a checkpoint or run folder as the graph parser.onnx.

    Raises: ConfigInvalid if the bundle is no face fusion; CheckpointMissing if there is no parser.
    """
    if exported.task != FACE_FUSION:
        raise ConfigInvalid(f"parser: a bundle of the task {exported.task} has no use for a face parser; leave it out")
    trained = load_face_parser(location)
    size = trained.config.data.size

    def draw(random: np.random.Generator, count: int) -> tuple[Tensor, ...]:
        return (noise_pictures(random, count, size),)

    graph = GraphExport(PARSER_NAME, PartShares(trained.network).eval(), ("input",), ("parts",), draw)
    described = ParserDescription(template=trained.config.data.template, size=size, parts=trained.parts)
    return replace(
        exported, graphs=(*exported.graphs, graph), description={**exported.description, "parser": described}
    )

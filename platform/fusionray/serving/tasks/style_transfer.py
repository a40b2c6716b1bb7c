"""The served task of style transfer: a content is painted in the style of one or several other pictures."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI

from fusionray.bundle.description import STYLE_TRANSFER
from fusionray.runtime.style_transfer.stylizer import BYTES_PER_PIXEL, WHOLE_PIXELS
from fusionray.serving.config import ServeConfig
from fusionray.serving.http.routes_style import add_style_route
from fusionray.serving.pipeline.generator_stage import GeneratorService
from fusionray.serving.pipeline.memory_budget import count_pixels
from fusionray.serving.pipeline.request_service import RequestService
from fusionray.serving.tasks.pictures import PictureTask


class StyleTransfer(PictureTask):
    """Make pictures with bundles of style transfer. The answer is like the content: its format, its profile."""

    def __init__(self, config: ServeConfig, requests: RequestService, generators: GeneratorService) -> None:
        super().__init__(STYLE_TRANSFER, ("content", "style"), config, requests, generators)

    def estimate_bytes(self, pictures: Mapping[str, bytes]) -> int:
        """Estimate the memory of a request: its decoded pictures, and the activations of what is painted whole."""
        painted = min(WHOLE_PIXELS, count_pixels(pictures["content"]))
        return super().estimate_bytes(pictures) + BYTES_PER_PIXEL * painted

    def add_routes(self, api: FastAPI) -> None:
        """Add the route `POST /v1/stylize`, which has fields that other tasks lack."""
        add_style_route(api, self)

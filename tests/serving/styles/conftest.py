"""What the tests of served style transfer share: a service of two families, and a restorer of faces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from ray import serve

from fusionray.client import FusionClient
from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.faces.face import Image
from fusionray.ray_cluster.connection import find_free_port
from fusionray.runtime.restorer import RestorerConfig
from fusionray.serving.application import run
from fusionray.serving.config import ModelConfig, ServeConfig
from fusionray.serving.config_sections.stages import StageConfig
from tests.support.restorers import write_restorer
from tests.support.tiny_bundle import write_tiny_bundle

SHAPES = {"content": (45, 62, 3), "style": (40, 40, 3), "style_2": (33, 70, 3)}


@pytest.fixture(scope="module")
def pictures() -> dict[str, Image]:
    return {
        name: np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)
        for number, (name, shape) in enumerate(SHAPES.items())
    }


@pytest.fixture(scope="module")
def client(style_folder: Path, tmp_path_factory: pytest.TempPathFactory, no_service: None) -> Iterator[FusionClient]:
    """A client of a service of two families, and a restorer of faces."""
    place, port = tmp_path_factory.mktemp("styles"), find_free_port()
    faces = write_tiny_bundle(place / "bundle")
    models = (
        ModelConfig(name="faces", bundle=str(faces.folder)),
        ModelConfig(name="paint", bundle=str(style_folder / "bundle")),
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv(KEY_VARIABLE, raising=False)
        environment.setenv(ROOT_VARIABLE, str(place))
        model = write_restorer(place / "invert.onnx", "invert")
        restorer = RestorerConfig(model=str(model), licence="MIT", size=96)
        ingress = StageConfig(num_replicas=1, cpus=1)
        run(ServeConfig(models=models, ingress=ingress, restorer=restorer), port=port, blocking=False)
    try:
        with FusionClient(f"http://127.0.0.1:{port}") as client:
            yield client
    finally:
        serve.shutdown()

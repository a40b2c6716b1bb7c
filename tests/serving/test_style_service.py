"""A bundle of another family behind the service."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np
import pytest
from ray import serve

from fusionray.bundle.bundle import read_bundle
from fusionray.environment import KEY_VARIABLE, ROOT_VARIABLE
from fusionray.faces.decode import ImageLimits, decode_image, encode_image
from fusionray.ray_cluster.connection import find_free_port
from fusionray.runtime.tasks import open_runner
from fusionray.safety.verify import verify
from fusionray.serving.application import run
from fusionray.serving.config import ModelConfig, ServeConfig


@pytest.mark.slow(seconds=30)
@pytest.mark.usefixtures("no_service")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_a_bundle_of_style_transfer_is_served_without_code_of_its_own(
    style_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path))
    port, bundle = find_free_port(), read_bundle(str(style_folder / "bundle"))
    shapes = {"content": (45, 62, 3), "style": (40, 40, 3)}
    pictures = {
        name: np.random.default_rng(len(name)).integers(0, 256, shape, dtype=np.uint8) for name, shape in shapes.items()
    }
    run(ServeConfig(models=(ModelConfig(bundle=str(bundle.folder)),)), port=port, blocking=False)
    try:
        files = {name: encode_image(picture, "png") for name, picture in pictures.items()}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/style_transfer", files=files, timeout=60)
    finally:
        serve.shutdown()
    assert answer.status_code == 200, answer.text
    assert verify(answer.content).holds
    made = decode_image(answer.content, ImageLimits(min_side=1))
    np.testing.assert_array_equal(made, open_runner(bundle).run(pictures))

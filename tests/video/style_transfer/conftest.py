"""What the tests of painted films share: a bundle of one training step, and a picture of a style."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest

from fusionray.data.synthetic.pictures import draw_style


@pytest.fixture(scope="session")
def style_bundle(style_folder: Path) -> str:
    return str(style_folder / "bundle")


@pytest.fixture(scope="session")
def style(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("style") / "style.png"
    cv2.imwrite(str(path), cv2.cvtColor(draw_style(0, 3, 64), cv2.COLOR_RGB2BGR))
    return str(path)

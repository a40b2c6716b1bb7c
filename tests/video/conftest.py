"""What the tests of videos share: a bundle that inverts nothing but is quick, and a picture of a source."""

from __future__ import annotations

import cv2
import pytest

from tests.support.pictures import draw_person
from tests.support.tiny_bundle import write_tiny_bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_bundle(tmp_path_factory.mktemp("bundle")).folder)


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("source") / "source.png"
    cv2.imwrite(str(path), cv2.cvtColor(draw_person(9, 160), cv2.COLOR_RGB2BGR))
    return str(path)

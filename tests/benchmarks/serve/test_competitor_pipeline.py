"""Competitors do the work of the service: their answers are those of a plain process, pixel by pixel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusionray.benchmarks.serve.baseline import PlainFuser
from fusionray.bundle.bundle import write_bundle
from fusionray.faces.blending.skin import Skin
from fusionray.faces.image_files.decode import decode_image, encode_image
from fusionray_competitors.config import CompetitorConfig
from fusionray_competitors.pipeline import Pipeline
from tests.support.pictures import draw_person
from tests.support.tiny_bundle import build_generator, build_identity, describe_tiny


@pytest.mark.parametrize("skin", ["source", "target"])
def test_a_competitor_makes_the_picture_that_a_plain_process_makes(tmp_path: Path, skin: Skin) -> None:
    files = {"generator.onnx": build_generator(), "identity.onnx": build_identity()}
    bundle = write_bundle(tmp_path / "bundle", files, describe_tiny().model_copy(update={"skin": skin}))
    source, target = (encode_image(draw_person(person, 256), "png") for person in (1, 2))
    plain = decode_image(PlainFuser(bundle, source, target, "png").answer())
    settings = CompetitorConfig(
        bundle=str(bundle.folder), port=1, workers=1, threads=1, max_batch=1, picture_format="png"
    )
    made = decode_image(Pipeline(settings).answer(source, target))
    assert np.array_equal(made, plain)
    assert not np.array_equal(made, decode_image(target))
